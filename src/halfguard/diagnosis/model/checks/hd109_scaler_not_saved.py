"""HD109: a checkpoint has the optimizer's state and not the scaler's.

A resumed run then starts again at 65536, whatever scale the saved one had found: overflows, or a spike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from halfguard.diagnosis.model.subject import Subject
from halfguard.errors import UsageError
from halfguard.records.finding import Finding

_SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
_DEPTH = 3  # mappings within mappings that are searched; Lightning's needs two


def check(subject: Subject) -> Iterator[Finding]:
    """Look into the checkpoint, where a loss scale is in use."""
    if subject.checkpoint is None or not subject.scales:
        return
    source = subject.checkpoint
    named = "the checkpoint" if isinstance(source, Mapping) else str(source)
    folder = not isinstance(source, Mapping) and Path(source).is_dir()
    resumable, scaled = _in_folder(Path(source)) if folder else _in_mapping(_opened(source))
    if not resumable or scaled:
        return
    yield Finding(
        code="HD109",
        severity="error",
        message=f"{named} has the state of the optimizer, and none of the scaler.",
        subject=named,
        why="A resumed run begins at the initial scale again: steps overflow that did not before.",
        cure='torch.save({**checkpoint, "scaler": scaler.state_dict()}, path)  '
        '# and on resume scaler.load_state_dict(checkpoint["scaler"])',
    )


def _in_folder(folder: Path) -> tuple[bool, bool]:
    """Whether a folder of the Trainer or of Accelerate has the optimizer's state, and the scaler's."""
    return any(folder.glob("optimizer*")), any(folder.glob("scaler*"))


def _in_mapping(saved: Any) -> tuple[bool, bool]:
    parts = list(_mappings(saved, _DEPTH))
    return any({"state", "param_groups"} <= p.keys() for p in parts), any(
        p.keys() >= _SCALER for p in parts
    )


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
        if depth:
            for part in value.values():
                yield from _mappings(part, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from _mappings(part, depth - 1)


def _opened(source: Any) -> Any:
    if isinstance(source, Mapping) or Path(source).suffix == ".safetensors":
        return source
    try:
        return torch.load(source, map_location="meta", weights_only=True)  # keys, no data
    except Exception as error:
        raise UsageError(
            f"The checkpoint {str(source)!r} cannot be read without running code from it: "
            f"{str(error).splitlines()[0]}",
            cure="If you trust it, load it yourself and pass the mapping: "
            "checkpoint=torch.load(path, weights_only=False).",
        ) from error
