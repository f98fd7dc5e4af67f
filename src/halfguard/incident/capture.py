"""Save an incident during training, without disturbing the run.

A refused step did not change weights and buffers, so the state at its start is the current state. Only the
batches and the random state had to be kept, by reference. Any failure here (a full disk, a batch that cannot
be written) is recorded and logged, and training continues. Weights that are too large are left out: a replay
can use those of the ENTRY.
"""

from __future__ import annotations

import errno
import logging
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.dist.wrapping import is_sharded
from halfguard.errors import UsageError
from halfguard.incident.encoding import Encoder, can_be_stored
from halfguard.incident.store import write_incident
from halfguard.records import IncidentRecord, MicroBatchRecord, StepRow
from halfguard.step.nested import batch_leaves, text_of

logger = logging.getLogger("halfguard")

_MAX_ABOUT = 10_000  # characters of the user's description of a batch
# Ranks that write one bad step. If a model diverges, the loss is bad on all of them at once: thousands of
# folders, each with the weights, would tell no more than the first few, which also name all ranks concerned.
MOST_RANKS = 4


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
    private: bool = False  # keep neither batches nor descriptions of them


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
        self._rank, self._world_size, self.entry = rank, world_size, entry

    def capture(self, model: nn.Module, bad_step: BadStep) -> Path | None:
        """Write the incident of a bad step and return its path; on failure log it and return None.

        If a step began to fail on many ranks, the first few of them write it, and the others return None.
        """
        concerned = bad_step.step.ranks
        if self._rank in concerned[MOST_RANKS:]:
            return None
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
        name = f"{bad_step.step.step:06d}-r{self._rank}"
        for number in count(
            1
        ):  # another run or guard in this folder may have had the same step number
            folder = self.folder / (name if number == 1 else f"{name}-{number}")
            if folder.exists():
                continue
            try:
                return write_incident(folder, record, tensors)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST} or not folder.is_dir():
                    raise
        raise AssertionError("unreachable")

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
            self._micro_batch(encoder, index, *parts, private=bad_step.private)
            for index, parts in enumerate(bad_step.micro_batches)
        ]
        tensors, problems = encoder.tensors, encoder.problems
        weights = self._weights
        if weights:
            with_weights, found = self._with_weights(model, tensors)
            weights = with_weights is not None
            tensors, problems = with_weights or tensors, problems + found
        kept, aliases = _find_aliases(tensors)
        if _size(kept) > self._max_bytes:
            raise UsageError(f"it would need {_size(kept)} bytes, but {self._limit}")
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
            problems=tuple(problems),
            environment=self._environment,
            git=self._git,
            recent=tuple(bad_step.recent),
            entry=self.entry,
        )
        return record, _separate(kept)

    @staticmethod
    def _micro_batch(
        encoder: Encoder, index: int, batch: Any, rng: Any, about: Any, *, private: bool
    ) -> MicroBatchRecord:
        random_state = encoder.encode(rng, f"rng.{index}")
        if private:
            left_out = encoder.leave_out(f"batch.{index}", "a private batch")
            lines = summarize_batch(batch)
            return MicroBatchRecord(batch=left_out, rng=random_state, private=True, summary=lines)
        return MicroBatchRecord(
            batch=encoder.encode_batch(batch, f"batch.{index}"),
            rng=random_state,
            about="" if about is None else text_of(about)[:_MAX_ABOUT],
        )

    def _with_weights(
        self, model: nn.Module, tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor] | None, list[str]]:
        """Return the tensors and the model's state, or None if it cannot be kept, and the problems."""
        if is_sharded(model):
            return None, ["model: its weights are sharded, so no rank has all of them"]
        encoder = Encoder()
        for name, tensor in model.state_dict().items():
            encoder.encode(tensor, f"model.{name}")
        dtypes = {str(t.dtype) for t in encoder.tensors.values() if not can_be_stored(t.dtype)}
        if dtypes:
            return None, [f"model: weights of dtype {', '.join(sorted(dtypes))} cannot be saved"]
        both = {**tensors, **encoder.tensors}
        size = _size(_find_aliases(both)[0])
        if size > self._max_bytes:
            return None, [
                f"model: weights are missing; with them it needs {size} bytes, but {self._limit}"
            ]
        return both, encoder.problems

    @property
    def _limit(self) -> str:
        return f"the limit for an incident is {self._max_bytes}"


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _find_aliases(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, and other names for it as aliases."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        kept[name] = tensor
    return kept, aliases


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with others, or are not contiguous: safetensors refuses them."""
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        shared = storage in storages and tensor.numel() > 0
        storages.add(storage)
        separate[name] = tensor.clone().contiguous() if shared else tensor.contiguous()
    return separate


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


_MAX_LINES = 100
_LEAST = 64  # elements of a tensor whose largest magnitude is given


@torch.no_grad()
def summarize_batch(batch: Any) -> tuple[str, ...]:
    """Return a line for each tensor and array of a batch that must not be stored. This reads the device.

    It holds dtypes, shapes and statistics; no value, key or string. Statistics are for floating-point
    tensors only, since integers are often identities. The largest magnitude is rounded up to a power of two,
    and left out for small tensors, where it would be nearly a value.
    """
    lines = (_line(leaf) for leaf in batch_leaves(batch))
    return tuple(islice((line for line in lines if line), _MAX_LINES))


def _line(leaf: Any) -> str:
    try:
        if isinstance(leaf, Tensor):
            name = f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
            return f"{name}{_statistics(leaf)}"
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(leaf, numpy.ndarray):
            kind = {"U": "str", "S": "bytes", "O": "object"}.get(leaf.dtype.kind, leaf.dtype.name)
            floating = _statistics(torch.from_numpy(leaf)) if leaf.dtype.kind == "f" else ""
            return f"numpy.{kind}{list(leaf.shape)}{floating}"
    except Exception:  # noqa: BLE001 - a layout or dtype that cannot be read
        return "a tensor that cannot be read"
    return ""


def _statistics(tensor: Tensor) -> str:
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return ""
    values = tensor.detach().float()
    finite = values[values.isfinite()].abs()
    text = f": {int(values.isnan().sum())} NaN, {int(values.isinf().sum())} infinite"
    if tensor.numel() < _LEAST or not finite.numel():
        return text
    largest = finite.max().item()
    power = f"at most 2^{math.ceil(math.log2(largest))}" if largest else "0"
    return f"{text}, largest magnitude {power}"
