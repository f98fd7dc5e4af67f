"""The guard for Lightning's FSDP strategy, which accepts its own precision plugin only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.precision import FSDPPrecision

from halfguard.guard.config import GuardConfig
from halfguard.integrations.lightning import GuardedPlugin
from halfguard.integrations.lightning_config import LIGHTNING_NAMES, load_mixed


class GuardFSDPPrecision(GuardedPlugin, FSDPPrecision):
    """The guard for ``FSDPStrategy``, which accepts no other plugin. It cannot repeat in FP32, and skips.

    FSDP casts parameters itself, and has no way to run one step in another precision.
    """

    def __init__(
        self,
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
    ) -> None:
        loaded = load_mixed(config)
        super().__init__(
            "32-true" if loaded.precision == "fp32" else LIGHTNING_NAMES[loaded.precision]
        )
        self._configure(loaded, run_dir, entry)

    @property
    def _can_repeat(self) -> bool:
        return False
