"""An overflow is announced well ahead on drifting runs, and never on stable ones."""

from __future__ import annotations

import math

import pytest

from halfguard.numerics.forecast import fit_trend, forecast
from halfguard.records.ranges import Forecast
from tests.probing.runs import LIMIT, drifting, stable, trained
from tests.support.cases import each

WINDOW, EVERY, AHEAD = 200, 10, 50


def first_announcement(values: list[float]) -> tuple[int, Forecast] | None:
    """Watch a run as it goes on: the latest steps, looked at every so often."""
    for now in range(EVERY, len(values), EVERY):
        found = forecast(values[max(0, now - WINDOW) : now])
        if found is not None:
            return now, found
    return None


def test_on_drifting_runs_the_overflow_is_announced_fifty_steps_ahead() -> None:
    ahead, inside = [], 0
    for seed in range(20):
        values = drifting(seed)
        found = first_announcement(values)
        if found is not None:
            now, announced = found
            ahead.append(len(values) - 1 - now)
            inside += announced.low <= ahead[-1] <= announced.high
    assert sum(steps >= AHEAD for steps in ahead) >= 18, ahead
    assert inside >= 16  # the interval holds what came


def test_on_stable_runs_nothing_is_announced() -> None:
    assert [seed for seed in range(20) if first_announcement(stable(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed_", range(3))
def test_a_real_training_that_diverges_slowly(seed_: int, seed: object) -> None:
    values = trained(0.68, seed=seed_, steps=400)
    over = next(step for step, value in enumerate(values) if value > LIMIT)
    found = first_announcement(values[: over + 1])
    assert found is not None
    assert over - found[0] >= AHEAD


@pytest.mark.parametrize("seed_", range(3))
def test_a_real_training_that_converges(seed_: int, seed: object) -> None:
    assert first_announcement(trained(0.1, seed=seed_, steps=300)) is None


def test_a_clean_line_is_extrapolated_exactly() -> None:
    found = forecast([2 ** (8 + step / 25) for step in range(150)])
    assert found.doubling == pytest.approx(25)
    assert found.steps == pytest.approx((math.log2(65504) - (8 + 149 / 25)) * 25)
    assert found.low == pytest.approx(found.steps)
    assert found.high == pytest.approx(found.steps)


@each(
    "values",
    [
        [],
        [1.0] * 5,
        [1.0] * 100,
        [0.0] * 50,
        [2.0**step for step in range(11)],  # too few
        [2 ** (step / 50) for step in range(200)] + [math.inf],  # it has happened
        [2 ** (16 - step / 50) for step in range(200)],  # falling
        [2 ** (step / 100) for step in range(200)],  # too far ahead
        [70000 * 2 ** (step / 100) for step in range(200)],  # beyond already
    ],
)
def test_no_announcement(values: list[float]) -> None:
    assert forecast(values) is None


def test_spikes_do_not_move_the_slope() -> None:
    points = [(float(step), step / 10 + (5.0 if step % 9 == 0 else 0.0)) for step in range(60)]
    assert fit_trend(points).slope == pytest.approx(0.1, abs=0.005)
