"""HD109: a checkpoint has the state of the optimizer but not of the scaler.

A resumed run then starts at scale 65536 instead of the saved run's scale: steps overflow, or the loss spikes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.errors import UsageError
from halfguard.records.finding import Finding

_SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
_DEPTH = 3  # levels of nested mappings to search; Lightning's checkpoint needs two


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Search the checkpoint for the scaler's state, if a loss scale is in use."""
    if setup.checkpoint is None or not setup.scaler_enabled:
        return
    source = setup.checkpoint
    name = "the checkpoint" if isinstance(source, Mapping) else str(source)
    is_folder = not isinstance(source, Mapping) and Path(source).is_dir()
    saved = _in_folder(Path(source)) if is_folder else _in_mapping(_load(source))
    has_optimizer, has_scaler = saved
    if not has_optimizer or has_scaler:
        return
    yield Finding(
        code="HD109",
        severity="error",
        message=f"{name} has the state of the optimizer but not of the scaler.",
        subject=name,
        why="A resumed run starts at the initial scale again: steps may overflow that did not before.",
        cure='torch.save({**checkpoint, "scaler": scaler.state_dict()}, path)  '
        '# and on resume scaler.load_state_dict(checkpoint["scaler"])',
    )


def _in_folder(folder: Path) -> tuple[bool, bool]:
    """Return whether a folder of Trainer or Accelerate has the optimizer's state, and the scaler's."""
    return any(folder.glob("optimizer*")), any(folder.glob("scaler*"))


def _in_mapping(saved: Any) -> tuple[bool, bool]:
    parts = list(_mappings(saved, _DEPTH))
    has_optimizer = any({"state", "param_groups"} <= part.keys() for part in parts)
    return has_optimizer, any(part.keys() >= _SCALER for part in parts)


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
        if depth:
            for part in value.values():
                yield from _mappings(part, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from _mappings(part, depth - 1)


def _load(source: Any) -> Any:
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
