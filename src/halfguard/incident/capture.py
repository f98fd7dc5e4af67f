"""Taking an incident while the run goes on, and never in its way.

A step that was refused left weights and buffers as they were, so the state at its start is simply the state
now; only the batches and the random state had to be kept, by reference. Whatever fails here (a full disk, a
batch that cannot be written) is noted and logged, and training goes on.
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
class Moment:
    """What the guard knows of the bad step."""

    step: StepRow
    micro_batches: Sequence[
        tuple[Any, Any, Any]
    ]  # batch, random state before it, what is said of it
    config: Mapping[str, Any]
    precision: str
    device: str
    grad_norms: Mapping[str, float] = field(default_factory=dict)
    exact: bool = True
    recent: Sequence[str] = ()


class Incidents:
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
        self.missed = 0  # bad steps that left no incident, and why the last one did not
        self.why_missed = ""
        self._keep, self._max_bytes, self._weights = keep, max_bytes, weights
        self._environment, self._git = dict(environment), _git_state()
        self._rank, self._world_size, self._entry = rank, world_size, entry

    def capture(self, model: nn.Module, moment: Moment) -> Path | None:
        """Write the incident of a bad step; None, with the reason logged, if that is not possible."""
        if len(self.written) >= self._keep:
            self._miss(moment, f"{self._keep} incidents are kept, this run has them")
            return None
        try:
            path = self._write(model, moment)
        except Exception as error:  # noqa: BLE001 - a witness must not stop the run, whatever it meets
            self._miss(moment, f"{type(error).__name__}: {error}")
            return None
        self.written.append(path)
        logger.warning("step %d: incident kept in %s", moment.step.step, path)
        return path

    def _write(self, model: nn.Module, moment: Moment) -> Path:
        record, tensors = self._gather(model, moment)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if size > self._max_bytes:
            raise UsageError(
                f"it would have {size} bytes, incidents.max_bytes is {self._max_bytes}"
            )
        return write_incident(
            self.folder / f"{moment.step.step:06d}-r{self._rank}", record, tensors
        )

    def _miss(self, moment: Moment, why: str) -> None:
        if why != self.why_missed:  # said once, not at every step of a bad streak
            logger.warning("step %d left no incident: %s", moment.step.step, why)
        self.missed += 1
        self.why_missed = why

    def _gather(self, model: nn.Module, moment: Moment) -> tuple[IncidentRecord, dict[str, Tensor]]:
        encoder = Encoder()
        micro_batches = [
            MicroBatchRecord(
                batch=encoder.encode(batch, f"batch.{index}"),
                rng=encoder.encode(rng, f"rng.{index}"),
                about="" if about is None else str(about),
            )
            for index, (batch, rng, about) in enumerate(moment.micro_batches)
        ]
        weights = self._weights and not is_sharded(model)
        if weights:
            for name, tensor in model.state_dict().items():
                encoder.encode(tensor, f"model.{name}")
        elif self._weights:
            encoder.problems.append(
                "model: its weights are spread over ranks, and no rank has them all"
            )
        tensors, aliases = _separate(encoder.tensors)
        record = IncidentRecord(
            step=moment.step,
            rank=self._rank,
            world_size=self._world_size,
            device=moment.device,
            precision=moment.precision,
            config=dict(moment.config),
            scale=moment.step.scale,
            micro_batches=tuple(micro_batches),
            evaluating=tuple(name for name, module in model.named_modules() if not module.training),
            weights=weights,
            aliases=aliases,
            grad_norms=dict(moment.grad_norms),
            exact=moment.exact,
            problems=tuple(encoder.problems),
            environment=self._environment,
            git=self._git,
            recent=tuple(moment.recent),
            entry=self._entry,
        )
        return record, tensors


def _separate(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each piece of memory once; other names for it become aliases. safetensors takes no shared memory."""
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
    """Revision of the user's code and whether it was changed since; empty outside a repository."""

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
