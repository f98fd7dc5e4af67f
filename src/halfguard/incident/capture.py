"""Save an incident during training, without disturbing the run.

A refused step did not change weights and buffers, so the state at its start is the current state. Only the
batches and the random state had to be kept, by reference. Any failure here (a full disk, a batch that cannot
be written) is recorded and logged, and training continues.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from halfguard.dist.wrapping import is_sharded
from halfguard.errors import UsageError
from halfguard.incident.encoding import Encoder
from halfguard.incident.store import write_incident
from halfguard.records import IncidentRecord, MicroBatchRecord, StepRow

logger = logging.getLogger("halfguard")


@dataclass(frozen=True)
class BadStep:
    """The guard's data on a bad step."""

    step: StepRow
    micro_batches: Sequence[tuple[Any, Any, Any]]  # batch, random state before it, description
    config: Mapping[str, Any]
    precision: str
    device: str
    grad_norms: Mapping[str, float] = field(default_factory=dict)
    exact: bool = True
    recent: Sequence[str] = ()


class IncidentWriter:
    """Writes at most ``keep`` incidents into a folder, each at most ``max_bytes`` large."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        max_bytes: int,
        weights: bool,
        environment: Mapping[str, str],
        rank: int = 0,
        world_size: int = 1,
        entry: str = "",
    ) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self.missed = 0  # bad steps without an incident, and the reason for the last one
        self.why_missed = ""
        self._keep, self._max_bytes, self._weights = keep, max_bytes, weights
        self._environment, self._git = dict(environment), _git_state()
        self._rank, self._world_size, self._entry = rank, world_size, entry

    def capture(self, model: nn.Module, bad_step: BadStep) -> Path | None:
        """Write the incident of a bad step and return its path; on failure log it and return None."""
        if len(self.written) >= self._keep:
            self._count_missed(bad_step, f"the limit of {self._keep} incidents is reached")
            return None
        try:
            path = self._write(model, bad_step)
        except Exception as error:  # noqa: BLE001 - no error in saving may stop the run
            self._count_missed(bad_step, f"{type(error).__name__}: {error}")
            return None
        self.written.append(path)
        logger.warning("step %d: incident saved in %s", bad_step.step.step, path)
        return path

    def _write(self, model: nn.Module, bad_step: BadStep) -> Path:
        record, tensors = self._build(model, bad_step)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if size > self._max_bytes:
            raise UsageError(
                f"it would have {size} bytes, but incidents.max_bytes is {self._max_bytes}"
            )
        return write_incident(
            self.folder / f"{bad_step.step.step:06d}-r{self._rank}", record, tensors
        )

    def _count_missed(self, bad_step: BadStep, why: str) -> None:
        if why != self.why_missed:  # log a reason once, not at every bad step in a row
            logger.warning("step %d: no incident was saved: %s", bad_step.step.step, why)
        self.missed += 1
        self.why_missed = why

    def _build(
        self, model: nn.Module, bad_step: BadStep
    ) -> tuple[IncidentRecord, dict[str, Tensor]]:
        encoder = Encoder()
        micro_batches = [
            MicroBatchRecord(
                batch=encoder.encode(batch, f"batch.{index}"),
                rng=encoder.encode(rng, f"rng.{index}"),
                about="" if about is None else str(about),
            )
            for index, (batch, rng, about) in enumerate(bad_step.micro_batches)
        ]
        weights = self._weights and not is_sharded(model)
        if weights:
            for name, tensor in model.state_dict().items():
                encoder.encode(tensor, f"model.{name}")
        elif self._weights:
            encoder.problems.append(
                "model: its weights are spread over ranks, and no rank has them all"
            )
        tensors, aliases = _find_aliases(encoder.tensors)
        record = IncidentRecord(
            step=bad_step.step,
            rank=self._rank,
            world_size=self._world_size,
            device=bad_step.device,
            precision=bad_step.precision,
            config=dict(bad_step.config),
            scale=bad_step.step.scale,
            micro_batches=tuple(micro_batches),
            evaluating=tuple(name for name, module in model.named_modules() if not module.training),
            weights=weights,
            aliases=aliases,
            grad_norms=dict(bad_step.grad_norms),
            exact=bad_step.exact,
            problems=tuple(encoder.problems),
            environment=self._environment,
            git=self._git,
            recent=tuple(bad_step.recent),
            entry=self._entry,
        )
        return record, tensors


def _find_aliases(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Keep each tensor once, and turn other names for it into aliases: safetensors rejects shared memory."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        storage = tensor.untyped_storage().data_ptr()
        shared = storage in storages and tensor.numel() > 0
        storages.add(storage)
        kept[name] = tensor.clone().contiguous() if shared else tensor.contiguous()
    return kept, aliases


def _git_state() -> dict[str, str]:
    """Return the revision of the user's code and whether it was changed; empty outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
        return result.stdout.strip()

    try:
        return {
            "revision": git("rev-parse", "HEAD"),
            "dirty": str(bool(git("status", "--porcelain"))),
        }
    except (OSError, subprocess.SubprocessError):
        return {}
