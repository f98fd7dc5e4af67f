"""``hparams.yaml``, which Lightning's loggers write beside their logs.

It may hold tags of Python objects. They are skipped: only plain values are read, and nothing is constructed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class _PlainLoader(yaml.SafeLoader):
    """A safe loader that reads a tagged object as None."""


_PlainLoader.add_multi_constructor("", lambda loader, suffix, node: None)  # noqa: ARG005


def read_hparams(folder: Path) -> dict[str, Any]:
    """Return the hyperparameters in the folder of a run; none if the file is missing or no mapping."""
    try:
        with (folder / "hparams.yaml").open(encoding="utf-8") as file:
            found = yaml.load(file, _PlainLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
