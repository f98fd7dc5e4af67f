"""Find ranks whose replicas no longer hold the same bits, and the tensors in which they differ.

Replicas can drift apart silently: a flipped bit, a rank that stepped when the others did not, a weight
written on one rank only. So every ``desync.every`` steps each rank takes a 64-bit checksum of the tensors
that it shares with others: parameters (frozen ones and FP32 masters too), the loss scale, and buffers that
nothing writes to. A buffer that changed since construction is replaced by a
constant: if every rank writes to it, nothing differs; if only one rank does, its constant differs from the
others' checksums.

The checksums are compared inside the sum that the step sends anyway (``consensus``). One rank's checksum is
multiplied by -(N-1), so equal checksums sum to zero, and a single one that differs does not. The two halves
of the number are sent as float64, in which every partial sum is exact for up to 2**20 ranks. Only if the
sum is not zero do ranks compare tensor by tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from halfguard.dist.collectives import (
    all_agree,
    all_gather_numbers,
    all_gather_object,
    all_reduce_max,
    broadcast_object,
    rank,
    world_size,
)
from halfguard.dist.layout import ALL, Holders, Layout, find_layout
from halfguard.dist.wrapping import unwrap_model
from halfguard.numerics.checksum import checksums, combine
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.step.parameters import parameters_of

# The tensors that ranks can be compared in: parameters, masters, and buffers that nothing writes
# to.
#
# A program writes to a buffer in two ways. Most writes are counted by torch, and seen on the host.
# Writes through ``.data``, common for codebooks and hand-written averages, are not counted; they
# show as bits that differ from those at construction. If the bits changed on every rank, the buffer
# belongs to each rank alone. If they changed on one rank only, a flipped bit is as likely, and it
# is reported.


NamedTensor = tuple[str, Tensor]
# Two numbers in a byte, which torch cannot copy.
_PACKED = {getattr(torch, "float4_e2m1fn_x2", None)}


@dataclass
class TrackedBuffer:
    """A buffer with its tensor and version counter at the time of ``keep``."""

    name: str
    module: nn.Module
    key: str
    tensor: Tensor | None = None
    version: int = 0

    def keep(self) -> None:
        """Start counting writes. Tensors made in inference mode have no version counter."""
        tensor: Tensor = getattr(self.module, self.key)
        counts = is_plain_memory(tensor) and not tensor.is_inference()
        self.tensor = tensor if counts else None
        self.version = tensor._version if counts else 0

    @property
    def unwritten(self) -> Tensor | None:
        """The buffer, if it is still the same tensor and nothing has written to it."""
        now: Tensor | None = getattr(self.module, self.key, None)
        if now is None or now is not self.tensor:
            return None
        return now if now._version == self.version else None


def parameters_to_compare(
    model: nn.Module, updated: Sequence[NamedTensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name and tensor to compare, and the parameter that has the same layout over ranks."""
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        yield name, parameter, parameter
    for name, tensor in updated:
        if name not in own:
            yield name, tensor, tensor
        elif tensor is not own[name]:
            yield f"{name} (master)", tensor, own[name]


def buffers_to_compare(model: nn.Module) -> Iterator[TrackedBuffer]:
    """Yield persistent buffers that are not running statistics; the others are caches."""
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase):
            kept = (key for key in module._buffers if key not in module._non_persistent_buffers_set)
            for key in kept:
                if getattr(module, key) is None:
                    continue
                buffer = TrackedBuffer(f"{path}.{key}" if path else key, module, key)
                buffer.keep()
                yield buffer


def is_plain_memory(tensor: Tensor) -> bool:
    """Return whether a tensor can be read and sent as bytes; sparse, quantized and nested ones cannot."""
    part = local_tensor(tensor)
    plain = part.layout is torch.strided and part.dtype not in _PACKED
    plain = plain and not (part.is_meta or part.is_quantized or part.is_nested)
    return plain and not is_traceable_wrapper_subclass(part)


_HALF = 0xFFFFFFFF
_CHANGED = 0x5DEECE66D  # stands for a buffer that changed here; any number but zero works
_REPORTED = 8  # ranks whose differing tensors are reported; more than that is not a flipped bit

SharedTensors = dict[Holders, dict[str, Tensor | None]]  # None for a buffer that was written to
Descriptions = dict[str, str]  # kind and checksum of each tensor of a rank


@dataclass(frozen=True)
class Divergence:
    """Ranks that differ from the majority, and their differing tensors."""

    ranks: tuple[int, ...]
    tensors: tuple[str, ...]

    def __str__(self) -> str:
        if not self.ranks:
            return "the checksums differed, but the tensors were equal in a second comparison"
        who = ", ".join(map(str, self.ranks[:_REPORTED]))
        more = f" and {len(self.ranks) - _REPORTED} more" if len(self.ranks) > _REPORTED else ""
        ranks = f"rank {who}" if len(self.ranks) == 1 else f"ranks {who}{more}"
        verb = "differs" if len(self.ranks) == 1 else "differ"
        return f"{ranks} {verb} in {', '.join(self.tensors)}"


class Replicas:
    """The tensors that this rank shares with others, and their comparison.

    ``scale`` returns the state of the loss scale, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scale: Callable[[], list[NamedTensor]],
    ) -> None:
        self.complete = True  # this rank holds every updated parameter as a whole
        self._model, self._scale = model, scale
        self._buffers: list[TrackedBuffer] = []
        self._parameters: dict[Holders, list[NamedTensor]] = {ALL: []}
        weights = chain(model.parameters(), *map(parameters_of, optimizers))
        self._changed_value = torch.tensor([_CHANGED], device=next(weights).device)
        if world_size() > 1:
            replicated = find_layout(model, list(model.parameters())).replicated
            if all_agree(replicated, self._changed_value.device):
                self._buffers = list(buffers_to_compare(unwrap_model(model)))
        self._initial_sums = self._sums([buffer.unwritten for buffer in self._buffers])

    def set_parameters(self, updated: Sequence[NamedTensor], layout: Layout) -> None:
        """Set the parameters to compare: those that are ``updated``, with their layout over ranks."""
        self.complete = layout.replicated
        self._parameters = {ALL: []}
        if world_size() == 1:
            return
        found = list(parameters_to_compare(unwrap_model(self._model), updated))
        everything = find_layout(self._model, [lying for _, _, lying in found])
        for (name, tensor, _), holders in zip(found, everything.holders, strict=True):
            if holders.count > 1 and is_plain_memory(tensor):
                self._parameters.setdefault(holders, []).append((name, tensor))

    def restart(self) -> None:
        """Compare the buffers that are equal on all ranks now. Every rank must call this."""
        if not self._buffers:
            return
        for buffer in self._buffers:
            buffer.keep()
        sums = self._sums([buffer.unwritten for buffer in self._buffers])
        least = ~all_reduce_max(~sums)  # the complement reverses the order
        equal = all_reduce_max(sums) == least
        for buffer, is_equal in zip(self._buffers, equal.tolist(), strict=True):
            if not is_equal:
                buffer.tensor = None  # differs between ranks: treat it as written to
        self._initial_sums = self._sums([buffer.unwritten for buffer in self._buffers])

    def fingerprint(self) -> Tensor:
        """Return two numbers whose sum over all ranks is zero if ranks that share tensors are equal."""
        parts = []
        for holders, named in self._shared().items():
            weight = 1.0 if holders.position else 1.0 - holders.count
            sums = self._sums(list(named.values()))
            if holders == ALL:
                sums[: len(self._buffers)].masked_fill_(self._changed(sums), _CHANGED)
            checksum = combine(sums)
            halves = torch.stack([checksum & _HALF, (checksum >> 32) & _HALF])
            parts.append(halves.double() * weight)
        return torch.stack(parts).sum(0)

    def find_divergence(self, device: torch.device) -> Divergence:
        """Find the ranks that differ. Every rank must call this."""
        mine = {
            holders: self._describe_tensors(holders, named)
            for holders, named in self._shared().items()
        }
        digests = all_gather_object({_digest(h): _digest(words) for h, words in mine.items()})
        leader = -1
        for holders in mine:
            ranks = range(world_size()) if holders.ranks is None else holders.ranks
            of_holders = {r: digests[r].get(_digest(holders)) for r in ranks}
            value, votes = Counter(of_holders.values()).most_common(1)[0]
            with_majority = 2 * votes > len(of_holders) and of_holders[rank()] == value
            if leader < 0 and not with_majority:
                leader = min(r for r in of_holders if of_holders[r] == value)
        leaders = [int(who) for (who,) in all_gather_numbers([float(leader)], device)]
        suspects = tuple(r for r, who in enumerate(leaders) if who >= 0)
        words = {_digest(holders): words for holders, words in mine.items()}
        return Divergence(suspects, _differing(words, suspects, leaders, device))

    def _describe_tensors(
        self, holders: Holders, named: Mapping[str, Tensor | None]
    ) -> Descriptions:
        sums = self._sums(list(named.values()))
        differs = self._changed(sums).tolist() if holders == ALL else ()
        changed = {b.name for b, has in zip(self._buffers, differs, strict=False) if has}
        return {
            name: "changed" if name in changed else f"{_kind(tensor)} {checksum}"
            for (name, tensor), checksum in zip(named.items(), sums.tolist(), strict=True)
        }

    def _shared(self) -> SharedTensors:
        shared: SharedTensors = {
            holders: dict(named) for holders, named in self._parameters.items()
        }
        buffers = {buffer.name: buffer.unwritten for buffer in self._buffers}
        shared[ALL] = buffers | shared[ALL] | dict(self._scale())
        return shared

    def _sums(self, tensors: Sequence[Tensor | None]) -> Tensor:
        # The result is on the device of the first tensor, which must be that of the loss.
        written = [self._changed_value if tensor is None else tensor for tensor in tensors]
        return checksums([self._changed_value, *written])[1:]

    def _changed(self, sums: Tensor) -> Tensor:
        """Return which buffers changed; ``sums`` begins with the checksums of the buffers."""
        return sums[: len(self._buffers)] != self._initial_sums


def _kind(tensor: Tensor | None) -> str:
    return "" if tensor is None else f"{tensor.dtype} {tuple(local_tensor(tensor).shape)}"


def _differing(
    mine: Mapping[str, Descriptions],
    suspects: tuple[int, ...],
    leaders: list[int],
    device: torch.device,
) -> tuple[str, ...]:
    """Return names of tensors that differ between a rank and its leader, or exist on one of them only."""
    found: dict[str, None] = {}
    for suspect in suspects[:_REPORTED]:
        right = broadcast_object(leaders[suspect], mine, device)
        wrong = [
            name
            for key in mine
            for name in {**right.get(key, mine[key]), **mine[key]}
            if mine[key].get(name) != right.get(key, mine[key]).get(name)
        ]
        found |= dict.fromkeys(broadcast_object(suspect, wrong, device))
    return tuple(found)


def _digest(value: Holders | Descriptions) -> str:
    """Return a short digest that is the same on every rank for the same value."""
    return blake2b(repr(value).encode(), digest_size=16).hexdigest()
