"""Ranks that must hold the same bits: do they still, and if not, who differs in what?

Replicas drift apart without a word: a flipped bit, a rank that stepped when the others did not, a weight
written on one rank only. So every ``desync.every`` steps each rank takes a 64-bit checksum of what it shares
with others: parameters (frozen ones and FP32 masters too), the loss scale, and buffers that nothing writes
to (``in_common``). A buffer that is not what it once was counts as a mark, the same for all: where every rank
writes to it, with whatever, nothing differs; where one alone does, that one has the mark and the others not.

The checksums are compared inside the sum that the step sends anyway (``consensus``). One holder weighs minus
the number of the others, each of the others weighs one: equal checksums cancel to zero, and a single one
that differs cannot. The two halves of the number are sent as float64, in which every partial sum is exact
for up to 2**20 ranks. Only when the sum is not zero do ranks ask each other who it is, tensor by tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.dist.collectives import (
    all_agree,
    all_gather_numbers,
    all_gather_object,
    all_reduce_max,
    broadcast_object,
    broadcast_tensors,
    rank,
    world_size,
)
from halfguard.dist.layout import ALL, Holders, Layout, layout_of
from halfguard.dist.wrapping import local, unwrapped
from halfguard.guard.agreement.comparable_tensors import (
    Buffer,
    Named,
    buffers_to_compare,
    has_bits,
    kind_of,
    parameters_to_compare,
)
from halfguard.guard.protocols import parameters_of
from halfguard.numerics.checksum import checksums, combined

_HALF = 0xFFFFFFFF
_MARK = 0x5DEECE66D  # stands for a buffer that changed here; any number but zero would do
_NAMED = 8  # ranks whose differing tensors are named; more than that is no flipped bit

Shared = dict[Holders, dict[str, Tensor | None]]  # None for a buffer that was written here
Words = dict[str, str]  # what a rank says of each of its tensors


@dataclass(frozen=True)
class Divergence:
    """Who differs from the majority, in what, and from whom the others could take it over."""

    ranks: tuple[int, ...]
    tensors: tuple[str, ...]
    source: int | None  # a rank of the majority; None if there is none, or others lack what it has

    def __str__(self) -> str:
        if not self.ranks:
            return "checksums differed, and were equal when ranks were asked again"
        who = ", ".join(map(str, self.ranks[:_NAMED]))
        more = f" and {len(self.ranks) - _NAMED} more" if len(self.ranks) > _NAMED else ""
        ranks = f"rank {who}" if len(self.ranks) == 1 else f"ranks {who}{more}"
        verb = "differs" if len(self.ranks) == 1 else "differ"
        return f"{ranks} {verb} in {', '.join(self.tensors)}"


class Replicas:
    """The tensors that this rank shares with others, and how to find out whether they are equal.

    ``scale`` gives the state of the loss scale, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scale: Callable[[], list[Named]],
    ) -> None:
        self.complete = True  # whether this rank holds, and sees, all that is updated
        self._model, self._optimizers, self._scale = model, optimizers, scale
        self._buffers: list[Buffer] = []
        self._parameters: dict[Holders, list[Named]] = {ALL: []}
        self._mark = torch.tensor([_MARK], device=next(model.parameters()).device)
        if world_size() > 1 and layout_of(model, list(model.parameters())).replicated:
            self._buffers = list(buffers_to_compare(unwrapped(model)))
        self._originally = self._sums([buffer.unwritten for buffer in self._buffers])

    def hold(self, updated: Sequence[Named], layout: Layout) -> None:
        """Compare from now on what the optimizers update, by name; ``layout`` is how that lies on ranks."""
        self.complete = layout.replicated
        self._parameters = {ALL: []}
        if world_size() == 1:
            return
        found = list(parameters_to_compare(unwrapped(self._model), updated))
        everything = layout_of(self._model, [lying for _, _, lying in found])
        for (name, tensor, _), holders in zip(found, everything.holders, strict=True):
            if holders.count > 1 and has_bits(tensor):
                self._parameters.setdefault(holders, []).append((name, tensor))

    def start_anew(self) -> None:
        """Compare the buffers that ranks have in common now, as after a snapshot. Every rank must ask."""
        if not self._buffers:
            return
        for buffer in self._buffers:
            buffer.keep()
        sums = self._sums([buffer.unwritten for buffer in self._buffers])
        least = ~all_reduce_max(~sums)  # the complement turns the order around
        equal = all_reduce_max(sums) == least
        for buffer, is_equal in zip(self._buffers, equal.tolist(), strict=True):
            if not is_equal:
                buffer.tensor = None  # each rank's own, as if it were written to
        self._originally = self._sums([buffer.unwritten for buffer in self._buffers])

    def fingerprint(self) -> Tensor:
        """Two numbers whose sum over all ranks is zero if holders of the same tensors are equal."""
        parts = []
        for holders, named in self._shared().items():
            weight = 1.0 if holders.position else 1.0 - holders.count
            sums = self._sums(list(named.values()))
            if holders == ALL:
                sums[: len(self._buffers)].masked_fill_(self._changed(sums), _MARK)
            parts.append(_halves(combined(sums)) * weight)
        return torch.stack(parts).sum(0)

    def inquest(self, device: torch.device) -> Divergence:
        """Ask who differs. Every rank must ask."""
        mine = {
            holders: self._testimony(holders, named) for holders, named in self._shared().items()
        }
        digests = all_gather_object({_digest(h): _digest(words) for h, words in mine.items()})
        leader, agreed = -1, True
        for holders in mine:
            of_holders = {r: digests[r].get(_digest(holders)) for r in _ranks(holders)}
            value, votes = Counter(of_holders.values()).most_common(1)[0]
            majority = 2 * votes > len(of_holders)
            if majority and of_holders[rank()] == value:
                continue
            if leader < 0:
                leader = min(r for r in of_holders if of_holders[r] == value)
            agreed = agreed and majority and holders == ALL
        testimony = all_gather_numbers([float(leader), float(agreed)], device)
        suspects = tuple(r for r, (who, _) in enumerate(testimony) if who >= 0)
        sources = {int(who) for who, sure in testimony if who >= 0 and sure}
        known = all(sure for _, sure in testimony) and len(sources) == 1
        source = sources.pop() if known else None
        if source is not None and not self._all_have_what(source, device):
            source = None
        leaders = [int(who) for who, _ in testimony]
        words = {_digest(holders): words for holders, words in mine.items()}
        return Divergence(suspects, _differing(words, suspects, leaders, device), source)

    def _testimony(self, holders: Holders, named: Mapping[str, Tensor | None]) -> Words:
        """What each tensor is."""
        changed = self._changed_buffers() if holders == ALL else set()
        sums = self._sums(list(named.values())).tolist()
        return {
            name: "changed" if name in changed else f"{kind_of(tensor)} {checksum}"
            for (name, tensor), checksum in zip(named.items(), sums, strict=True)
        }

    @torch.no_grad()
    def take_over(self, divergence: Divergence) -> None:
        """Overwrite what all ranks share, and the optimizers' state, with what the majority holds."""
        assert divergence.source is not None  # noqa: S101 - without a majority the run is halted
        unwritten = [buffer for buffer in self._buffers if buffer.unwritten is not None]
        own = broadcast_object(
            divergence.source, sorted(self._changed_buffers()), self._mark.device
        )
        for name, value in self._holdings().items():
            if isinstance(value, Tensor) and name not in own:
                part = local(value.detach())
                # Adam counts its steps on the host, where NCCL cannot reach.
                sent = part.to(self._mark.device).contiguous()
                broadcast_tensors(divergence.source, [sent])
                if sent is not part:
                    part.copy_(sent)
        for buffer in unwritten:
            buffer.keep()  # these writes were ours

    def _all_have_what(self, source: int, device: torch.device) -> bool:
        """Whether every rank holds tensors of the names, shapes and dtypes that one of them holds."""
        holdings = self._holdings()
        mine = [(name, kind_of(value)) for name, value in holdings.items()]  # sent in this order
        theirs = broadcast_object(source, mine, device)
        can = all(has_bits(value) for value in holdings.values() if isinstance(value, Tensor))
        return all_agree(can and theirs == mine, device)

    def _holdings(self) -> dict[str, object]:
        """What all ranks share by name, and the optimizers' state of it."""
        shared = self._shared()[ALL]
        whole = {id(tensor) for _, tensor in self._parameters[ALL]}
        states = {
            f"state {turn}.{index}.{key}": value
            for turn, optimizer in enumerate(self._optimizers)
            for index, parameter in enumerate(parameters_of(optimizer))
            if id(parameter) in whole  # state of a part belongs to the rank that holds the part
            for key, value in sorted(optimizer.state.get(parameter, {}).items())
        }
        return {**shared, **states}

    def _shared(self) -> Shared:
        shared: Shared = {holders: dict(named) for holders, named in self._parameters.items()}
        buffers = {buffer.name: buffer.unwritten for buffer in self._buffers}
        shared[ALL] = buffers | shared[ALL] | dict(self._scale())
        return shared

    def _sums(self, tensors: Sequence[Tensor | None]) -> Tensor:
        # The result lies where the first tensor does, and must lie where the loss is.
        written = [self._mark if tensor is None else tensor for tensor in tensors]
        return checksums([self._mark, *written])[1:]

    def _changed(self, sums: Tensor) -> Tensor:
        """Which buffers are not what they once were, from the checksums of all, theirs first."""
        return sums[: len(self._buffers)] != self._originally

    def _changed_buffers(self) -> set[str]:
        changed = self._changed(self._sums([buffer.unwritten for buffer in self._buffers])).tolist()
        return {buffer.name for buffer, has in zip(self._buffers, changed, strict=True) if has}


def _differing(
    mine: Mapping[str, Words], suspects: tuple[int, ...], leaders: list[int], device: torch.device
) -> tuple[str, ...]:
    """Names of tensors that are others on some rank than on its leader, or only on one of both."""
    found: dict[str, None] = {}
    for suspect in suspects[:_NAMED]:
        right = broadcast_object(leaders[suspect], mine, device)
        wrong = [
            name
            for key in mine
            for name in {**right.get(key, mine[key]), **mine[key]}
            if mine[key].get(name) != right.get(key, mine[key]).get(name)
        ]
        found |= dict.fromkeys(broadcast_object(suspect, wrong, device))
    return tuple(found)


def _halves(checksum: Tensor) -> Tensor:
    return torch.stack([checksum & _HALF, (checksum >> 32) & _HALF]).double()


def _ranks(holders: Holders) -> Sequence[int]:
    return range(world_size()) if holders.ranks is None else holders.ranks


def _digest(value: Holders | Words) -> str:
    """The same on every rank for the same value; short, for thousands of ranks may be named in it."""
    return blake2b(repr(value).encode(), digest_size=16).hexdigest()
