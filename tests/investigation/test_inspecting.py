"""The backward passes of a good run that are looked at are spread over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from halfguard.investigation.bus import HookBus
from halfguard.investigation.inspecting import HeadroomWatch, choose_passes
from halfguard.investigation.passes import PassResult
from halfguard.tracing.called_modules import CalledModules
from tests.investigation.command import ask, culprit_line


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


def normalized(scores: torch.Tensor) -> torch.Tensor:
    return scores / torch.sqrt((scores**2).mean() + 1e-3)


def masked(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores + (scores < 0).half() * -1e9, 0)


@pytest.mark.parametrize(
    ("compute", "size", "told"),
    [(normalized, 4000, ["pow"]), (normalized, 10, []), (masked, 10, []), (torch.exp, 4000, [])],
)
def test_overflow_behind_finite_numbers_that_are_read_is_noted(
    compute: Callable[[torch.Tensor], torch.Tensor], size: int, told: list[str]
) -> None:
    def run() -> None:
        with torch.no_grad():
            watch.note_read(compute(torch.linspace(-1, 1, 8, dtype=torch.float16) * size).float())

    watch = HeadroomWatch(HookBus(), CalledModules(), run.__code__)
    with watch:
        run()
    assert [watch.flags[index].first.op for index in watch.wrongly_read] == told


@pytest.mark.slow
def test_a_reward_that_half_made_0_is_told_with_its_line(tmp_path: Path) -> None:
    answer = ask("half_reward.py", tmp_path)
    assert (answer.outcome, answer.code) == ("trains wrongly", "HG609")
    (found,) = answer.swallowed
    assert (found.file, found.line) == ("half_reward.py", culprit_line("half_reward.py"))
    assert answer.cure is not None
    assert "values read at half_reward.py:" in answer.cure.sentence
