"""The backward passes of a good run that are looked at are spread over it."""

from __future__ import annotations

from halfguard.investigation.inspecting import choose_passes
from halfguard.investigation.passes import PassResult


def test_passes_are_spread_over_a_run() -> None:
    assert choose_passes(PassResult(backward=1000, seconds=10)) == (0, 1, 250, 500, 750, 998, 999)


def test_a_short_run_is_looked_at_as_a_whole() -> None:
    assert choose_passes(PassResult(backward=3, seconds=1)) == (0, 1, 2)
    assert choose_passes(PassResult(backward=1, seconds=1)) == (0,)


def test_of_a_long_run_only_two_minutes_are_looked_at() -> None:
    assert max(choose_passes(PassResult(backward=10_000, seconds=1200))) == 999
