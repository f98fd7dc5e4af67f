"""The delta debugging by itself, on sets of names."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from halfguard.probing.shrink import drop_unneeded, shrink
from halfguard.step.parameters import is_inside, outermost
from tests.support.cases import each


class Oracle:
    """Passes if every needed name is there; counts how often it was asked."""

    def __init__(self, needed: set[str]) -> None:
        self.needed, self.asked = needed, 0

    def __call__(self, names: Sequence[str]) -> bool:
        self.asked += 1
        return self.needed <= set(names)


@each("seed", range(30))
def test_exactly_the_needed_ones_stay_in_order(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"m{i}" for i in range(rng.randint(1, 200))]
    needed = set(rng.sample(names, rng.randint(0, min(6, len(names)))))
    oracle = Oracle(needed)
    assert shrink(names, oracle) == [name for name in names if name in needed]
    assert oracle.asked <= (len(needed) + 1) * (2 * math.log2(len(names) + 1) + 2)


def test_where_all_are_needed_each_costs_one_trial() -> None:
    names = [f"m{i}" for i in range(9)]
    oracle = Oracle(set(names))
    assert shrink(names, oracle) == names
    assert oracle.asked == 9


def test_either_of_two_is_enough() -> None:
    passes: Callable[[Sequence[str]], bool] = lambda names: "a" in names or "b" in names  # noqa: E731
    assert shrink(["a", "b"], passes) == ["a"]


def test_what_is_always_there_is_not_returned() -> None:
    oracle = Oracle({"x", "b"})
    assert shrink(["a", "b", "c"], oracle, always=["x"]) == ["b"]


def test_irreducible_drops_what_only_seemed_needed() -> None:
    # Not monotone: with "a" and "c" there, "b" is needed; without "c" it is not.
    passes: Callable[[Sequence[str]], bool] = lambda names: (  # noqa: E731
        "a" in names and ("c" not in names or "b" in names)
    )
    assert drop_unneeded(["a", "b", "c"], passes) == ["a"]


def test_paths() -> None:
    assert outermost(["a.b", "a", "ab", "a.b.c"]) == ("a", "ab")
    assert outermost(["a.b", ""]) == ("",)
    assert is_inside("a.b", "a")
    assert is_inside("a", "")
    assert not is_inside("a", "a")
    assert not is_inside("ab", "a")
