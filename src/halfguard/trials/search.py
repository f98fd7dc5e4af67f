"""Search the cheapest islands that fix a bad step: ``guard``, ``replay`` and ``plan`` use this search.

The operation that returns the first NaN or Inf gets the cheapest island that covers it. If the step is bad
still, the operation that is first then gets one too, and so on. Islands at the same place of two blocks of a
list become one pattern, which holds for every block: real models repeat a block, and its fault with it.
Where an island of its own does not help an operation, the next in order of cost is tried.

A line in FP32 may make a step finite, and leave it inexact: what it reads was rounded to half. Then the
linear layers of its module are rescaled as well, which return FP32 and take no FLOPs out of half.

The cost is what leaves half (``cost``). A module around the operation that has most of the FLOPs is never an
island: it is tried last, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from torch import nn

from halfguard.precision.rescaled import can_be_rescaled
from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.step.parameters import is_covered, without_wrappers
from halfguard.trials.cost import NOTHING, Cost, StepCosts
from halfguard.trials.producer import Producer, name_of
from halfguard.trials.proof import Proof

MOST = 0.5  # share of FLOPs above which a parent is no island
_CHEAP = 0.01  # shares of FLOPs up to this are equal
_TRIALS = 24  # of one search at most
_SPARE = 0.02  # share of FLOPs from which a pattern is worth shrinking


class Bench(Protocol):
    """A bad step that can be run with any islands; all ranks get the same answers."""

    costs: StepCosts
    modules: dict[str, nn.Module]  # by their paths
    rescaling: bool  # whether linear layers can be rescaled

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        """Run the step with exactly these islands."""

    def find_producer(self, islands: Sequence[AnyIsland]) -> Producer | None:
        """Return the operation that returns the first NaN or Inf with these islands."""

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        """Return the islands that cover an operation and can be made here."""


@dataclass(frozen=True)
class Found:
    """Islands that together fix a step, each with its operation; none if nothing was proven.

    ``needed`` is what would fix it, if that is a module with most of the FLOPs.
    """

    islands: tuple[tuple[AnyIsland, Producer], ...] = ()
    proof: Proof = field(default_factory=partial(Proof, holds=False))
    cost: Cost = NOTHING
    needed: AnyIsland | None = None


@dataclass(frozen=True)
class _Choice:
    island: AnyIsland
    producer: Producer
    left: tuple[AnyIsland, ...]  # the next candidates
    members: tuple[_Choice, ...] = ()  # of a pattern, those that failed


class IslandSearch:
    """One search; ``present`` are islands that are decided already, ``tried`` names that did not hold."""

    def __init__(
        self, bench: Bench, present: Sequence[AnyIsland] = (), tried: Sequence[str] = ()
    ) -> None:
        self._bench, self._present, self._tried = bench, tuple(present), frozenset(tried)
        self._dear: list[AnyIsland] = []
        self._trials = self._limit = 0

    def run(self, producer: Producer, limit: int) -> Found:
        """Return at most ``limit`` islands that fix the step, whose first bad operation is ``producer``."""
        chosen: list[_Choice] = []
        self._limit = limit
        following: Producer | None = producer
        while self._trials < _TRIALS:
            options = () if following is None else self._options(following, chosen)
            if following is not None and options and len(chosen) <= limit:
                self._add(chosen, _Choice(options[0], following, options[1:]))
            elif not _move_on(chosen):
                break
            if len(chosen) > limit:
                following = None
                continue
            found = self._prove(chosen)
            if found.islands:
                return self._shrink(chosen, found)
            following = self._bench.find_producer(self._with(chosen))
            if following is None and (exact := self._with_feeding(chosen)):
                return exact
        return self._what_is_needed(producer)

    def _with_feeding(self, chosen: Sequence[_Choice]) -> Found | None:
        """Rescale also the linear layers of the last line's module, in every block."""
        last, modules = chosen[-1], self._bench.modules
        own = last.producer.module
        if own is None or not isinstance(last.island, LineIsland) or last.island.kind != "fp32":
            return None
        names = [
            re.sub(r"(?<=\.)\d+(?=\.)", "*", path)
            for path, module in modules.items()
            if path and path.rpartition(".")[0] == without_wrappers(own) and can_be_rescaled(module)
        ]
        layers = [Island(module=name, kind="rescaled") for name in names]
        feeding = [
            _Choice(layer, last.producer, ())
            for layer in layers
            if self._can_be_made(layer) and not self._is_made(layer, chosen)
        ]
        more = [*chosen, *feeding]
        found = self._prove(more) if feeding and self._bench.rescaling else Found()
        found = self._shrink(more, found) if found.islands else found
        return found if 0 < len(found.islands) <= self._limit else None

    def _add(self, chosen: list[_Choice], new: _Choice) -> None:
        """Add a choice; with one at the same place of another block it becomes a pattern."""
        for old in chosen:
            pattern = _pattern(old.island, new.island)
            if pattern is not None and self._can_be_made(pattern):
                new = replace(old, island=pattern, members=(*(old.members or (old,)), new))
                break
        island, modules = new.island, self._bench.modules
        if isinstance(island, Island):
            # Islands inside the new one are part of it.
            chosen[:] = [
                one
                for one in chosen
                if island.kind not in ("fp32", one.island.kind)
                or not _is_part(one.island, [island], modules)
            ]
        chosen.append(new)

    def _can_be_made(self, pattern: Island) -> bool:
        """Return whether a pattern is cheap enough, and its kind is one for all of its members."""
        modules = self._bench.modules
        fits = pattern.kind == "fp32" or all(
            can_be_rescaled(modules[path]) for path in pattern.members(modules)
        )
        return fits and self._bench.costs.of([pattern]).flops <= MOST

    def _options(self, producer: Producer, chosen: Sequence[_Choice]) -> tuple[AnyIsland, ...]:
        """Return the candidates of an operation that are no part of the islands yet, cheapest first."""
        options = [
            island
            for island in self._bench.candidates(producer)
            if not self._is_made(island, chosen)
        ]
        own = without_wrappers(producer.module or "")
        has_parts = any(path.startswith(f"{own}.") for path in self._bench.modules)
        dear = [
            island
            for island in options
            if isinstance(island, Island)
            and (not island.module or (island.module != own or has_parts))
            and self._bench.costs.of([island]).flops > MOST
        ]
        self._dear += [island for island in dear if island not in self._dear]
        return tuple(sorted((i for i in options if i not in dear), key=self._key))

    def _is_made(self, island: AnyIsland, chosen: Sequence[_Choice]) -> bool:
        made = self._with(chosen)
        if isinstance(island, LineIsland):
            return any(
                isinstance(one, LineIsland)
                and (one.file, one.line, one.within) == (island.file, island.line, island.within)
                and one.kind in ("fp32", island.kind)
                for one in made
            )
        kinds = ("fp32", island.kind)
        wider = [one for one in made if isinstance(one, Island) and one.kind in kinds]
        return contains(wider, island, self._bench.modules)

    def _key(self, island: AnyIsland) -> tuple[float, bool, float]:
        cost = self._bench.costs.of([island])
        # Lines come after modules that cost as little: a mode that looks at every call is not free.
        flops = cost.flops if cost.flops > _CHEAP else 0.0
        return flops, isinstance(island, LineIsland), cost.bytes

    def _with(self, chosen: Sequence[_Choice]) -> list[AnyIsland]:
        return [*self._present, *(choice.island for choice in chosen)]

    def _prove(self, chosen: Sequence[_Choice]) -> Found:
        if len(chosen) == 1 and name_of(chosen[0].island) in self._tried:
            return Found()
        self._trials += 1
        islands = self._with(chosen)
        proof = self._bench.prove(islands, chosen[0].producer)
        if not proof.holds:
            return Found()
        pairs = tuple((choice.island, choice.producer) for choice in chosen)
        return Found(pairs, proof, self._bench.costs.of(island for island, _ in pairs))

    def _shrink(self, chosen: list[_Choice], found: Found) -> Found:
        """Drop islands that are not needed with the others; a dear pattern keeps the members that are."""
        for choice in list(chosen):
            island = choice.island
            if (
                isinstance(island, Island)
                and "*" in island.module
                and self._is_wide(island, chosen)
            ):
                found = self._narrow(choice, island, chosen) or found
        for choice in list(chosen):
            found = self._try([one for one in chosen if one is not choice], chosen) or found
        return found

    def _is_wide(self, pattern: Island, chosen: Sequence[_Choice]) -> bool:
        """Return whether a pattern is dear, or has members that needed another island."""
        others = [one.island for one in chosen if isinstance(one.island, Island)]
        return self._bench.costs.of([pattern]).flops > _SPARE or any(
            contains([pattern], other, self._bench.modules) for other in others if other != pattern
        )

    def _narrow(self, choice: _Choice, island: Island, chosen: list[_Choice]) -> Found | None:
        """Replace a pattern by the members that fail in this step; None if they are more than half of it."""
        others = [one for one in chosen if one is not choice]
        members, modules = list(choice.members), self._bench.modules
        while 2 * len(members) <= len(island.members(modules)):
            wide = [one.island for one in others if isinstance(one.island, Island)]
            own = [one for one in members if not _is_part(one.island, wide, modules)]
            fewer = [*others, *own]
            if len(fewer) > self._limit:
                break
            found = self._try(fewer, chosen)
            if found is not None:
                return found
            following = self._bench.find_producer(self._with(fewer))
            if following is None:
                break
            member = Island(module=without_wrappers(following.module or ""), kind=island.kind)
            known = any(one.island == member for one in members)
            if known or not contains([island], member, modules):
                break
            members.append(_Choice(member, following, ()))
        return None

    def _try(self, fewer: list[_Choice], chosen: list[_Choice]) -> Found | None:
        """Prove fewer islands; if they are enough, they are the choice."""
        found = self._prove(fewer) if fewer and self._trials < _TRIALS else Found()
        if not found.islands:
            return None
        chosen[:] = fewer
        return found

    def _what_is_needed(self, producer: Producer) -> Found:
        for island in sorted(self._dear, key=self._key):
            if self._bench.prove([*self._present, island], producer).holds:
                return Found(needed=island, cost=self._bench.costs.of([island]))
        return Found()


def _is_part(island: AnyIsland, wide: Sequence[Island], paths: Iterable[str]) -> bool:
    return isinstance(island, Island) and contains(wide, island, paths)


def contains(islands: Sequence[Island], inner: Island, paths: Iterable[str]) -> bool:
    """Return whether every module that ``inner`` names is one of the islands, or inside one."""
    made = {path for island in islands for path in island.members(paths)}
    members = inner.members(paths)
    return bool(members) and all(is_covered(path, made) for path in members)


def _pattern(old: AnyIsland, new: AnyIsland) -> Island | None:
    """Return an island for both, if they differ in indices of lists only."""
    if not isinstance(old, Island) or not isinstance(new, Island) or old.kind != new.kind:
        return None
    pairs = list(zip(old.module.split("."), new.module.split("."), strict=False))
    if old.module.count(".") != new.module.count("."):
        return None
    if all(a == b or (b.isdecimal() and (a.isdecimal() or a == "*")) for a, b in pairs):
        parts = [a if a == b else "*" for a, b in pairs]
        return Island(module=".".join(parts), kind=old.kind)
    return None


def _move_on(chosen: list[_Choice]) -> bool:
    """Replace the last choice that has a further candidate by that, and drop those after it."""
    while chosen:
        last = chosen.pop()
        if last.left:
            chosen.append(_Choice(last.left[0], last.producer, last.left[1:]))
            return True
    return False
