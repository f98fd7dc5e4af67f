"""The backward passes of a good run that are looked at are spread over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation.inspecting import choose_passes
from halfguard.investigation.passes import PassResult
from tests.investigation.command import ask


def test_passes_are_spread_over_a_run() -> None:
    assert choose_passes(PassResult(backward=1000, seconds=10)) == (0, 1, 250, 500, 750, 998, 999)


def test_a_short_run_is_looked_at_as_a_whole() -> None:
    assert choose_passes(PassResult(backward=3, seconds=1)) == (0, 1, 2)
    assert choose_passes(PassResult(backward=1, seconds=1)) == (0,)


def test_of_a_long_run_only_two_minutes_are_looked_at() -> None:
    assert max(choose_passes(PassResult(backward=10_000, seconds=1200))) == 999


@pytest.mark.slow
def test_moments_of_a_half_optimizer_that_round_to_zero_are_not_told(tmp_path: Path) -> None:
    answer = ask("half_adam.py", tmp_path)
    assert answer.outcome == "nothing bad"
    assert answer.headroom
    assert answer.swallowed == ()
