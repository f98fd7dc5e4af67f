"""Ranks that must hold the same bits: do they still, and if not, who differs in what?

Replicas drift apart without a word: a flipped bit, a rank that stepped when the others did not, a weight
written on one rank only. So every ``desync.every`` steps each rank takes a 64-bit checksum of what it shares
with others: parameters, the loss scale, and buffers that nothing writes to. (Running statistics differ
between ranks by design, and DDP overwrites the others at every forward pass.)

The checksums are compared inside the sum that the step sends anyway (``consensus``). One holder weighs minus
the number of the others, each of the others weighs one: equal checksums cancel to zero, and a single one
that differs cannot. The two halves of the number are sent as float64, in which every partial sum is exact
for up to 2**20 ranks. Only when the sum is not zero do ranks ask each other who it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from halfguard.dist.layout import ALL, Holders, Layout
from halfguard.dist.ranks import bits_of, everybody, rank, word_of, world_size
from halfguard.guard.parts import parameters_of
from halfguard.numerics.checksum import checksums, combined

_HALF = 0xFFFFFFFF
_NAMED = 8  # ranks whose differing tensors are named; more than that is no flipped bit

Named = tuple[str, Tensor]


@dataclass(frozen=True)
class Divergence:
    """Who differs from the majority, in what, and from whom the others could take it over."""

    ranks: tuple[int, ...]
    tensors: tuple[str, ...]
    source: int | None  # a rank of the majority; None if there is none, or values are spread

    def __str__(self) -> str:
        if not self.ranks:
            return "checksums differed, and were equal when ranks were asked again"
        who = ", ".join(map(str, self.ranks[:_NAMED]))
        more = f" and {len(self.ranks) - _NAMED} more" if len(self.ranks) > _NAMED else ""
        ranks = f"rank {who}" if len(self.ranks) == 1 else f"ranks {who}{more}"
        verb = "differs" if len(self.ranks) == 1 else "differ"
        return f"{ranks} {verb} in {', '.join(self.tensors)}"


class Replicas:
    """The tensors that this rank shares with others, and how to find out whether they are equal."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Named],
        layout: Layout,
        scale: Callable[[], list[Named]],
    ) -> None:
        self.complete = layout.replicated  # whether this rank holds, and sees, everything
        self._scale = scale
        self._buffers = list(_buffers(model)) if layout.replicated else []
        self._parameters: dict[Holders, list[Named]] = {ALL: []}
        for named, holders in zip(parameters, layout.holders, strict=True):
            if holders.count > 1:
                self._parameters.setdefault(holders, []).append(named)

    def fingerprint(self) -> Tensor:
        """Two numbers whose sum over all ranks is zero if holders of the same tensors are equal."""
        parts = []
        for holders, named in self._shared().items():
            weight = 1.0 if holders.position else 1.0 - holders.count
            parts.append(_halves(_checksum(named)) * weight)
        return torch.stack(parts).sum(0)

    def inquest(self, device: torch.device) -> Divergence:
        """Ask who differs. Every rank must ask."""
        shared = self._shared()
        mine = [float(half) for named in shared.values() for half in _halves(_checksum(named))]
        of_ranks = [tuple(row) for row in everybody(mine, device)]
        leader, agreed = -1, True
        for index, holders in enumerate(shared):
            of_holders = {r: of_ranks[r][2 * index : 2 * index + 2] for r in _ranks(holders)}
            value, votes = Counter(of_holders.values()).most_common(1)[0]
            majority = 2 * votes > len(of_holders)
            if majority and of_holders[rank()] == value:
                continue
            leader = min(r for r in of_holders if of_holders[r] == value)
            agreed = majority and holders == ALL
            break
        testimony = everybody([float(leader), float(agreed)], device)
        suspects = tuple(r for r, (who, _) in enumerate(testimony) if who >= 0)
        sources = {int(who) for who, sure in testimony if who >= 0 and sure}
        known = all(sure for _, sure in testimony) and len(sources) == 1
        names = self._differing(suspects, [int(who) for who, _ in testimony], device)
        return Divergence(suspects, names, sources.pop() if known else None)

    def take_over(self, divergence: Divergence, optimizers: Sequence[Optimizer]) -> None:
        """Overwrite what all ranks share, and the optimizers' state, with what the majority holds."""
        assert divergence.source is not None  # noqa: S101 - without a majority the run is halted
        states = [
            value
            for optimizer in optimizers
            for parameter in parameters_of(optimizer)
            for _, value in sorted(optimizer.state.get(parameter, {}).items())
            if isinstance(value, Tensor)
        ]
        shared = [tensor.detach() for _, tensor in self._shared()[ALL]]
        bits_of(divergence.source, [*shared, *states])

    def _differing(
        self, suspects: tuple[int, ...], leaders: list[int], device: torch.device
    ) -> tuple[str, ...]:
        named = [named for group in self._shared().values() for named in group]
        sums = checksums([tensor for _, tensor in named]).tolist()
        found: dict[str, None] = {}
        for suspect in suspects[:_NAMED]:
            right = word_of(leaders[suspect], sums, device)
            wrong = [n for (n, _), a, b in zip(named, sums, right, strict=False) if a != b]
            found |= dict.fromkeys(word_of(suspect, wrong, device))
        return tuple(found)

    def _shared(self) -> dict[Holders, list[Named]]:
        unwritten = [
            (name, getattr(module, key))
            for name, module, key, version in self._buffers
            if getattr(module, key)._version == version
        ]
        shared = dict(self._parameters)
        shared[ALL] = [*shared[ALL], *unwritten, *self._scale()]
        return shared


def _checksum(named: Sequence[Named]) -> Tensor:
    return combined(checksums([tensor for _, tensor in named]))


def _halves(checksum: Tensor) -> Tensor:
    return torch.stack([checksum & _HALF, (checksum >> 32) & _HALF]).double()


def _ranks(holders: Holders) -> Sequence[int]:
    return range(world_size()) if holders.ranks is None else holders.ranks


def _buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, int]]:
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase):
            for key, buffer in module.named_buffers(recurse=False):
                yield f"{path}.{key}" if path else key, module, key, buffer._version
