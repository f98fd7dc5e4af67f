"""An overflow is announced while the run drifts towards it, and a stable run is left in peace.

A small sample; ``scripts/soak watch`` has all runs, with those that the forecast gets wrong.
"""

from __future__ import annotations

import pytest
from benchmarks.models import forecast_runs
from benchmarks.models.planted import Drift

from tests.guard.watching.drifts import DRIFTING, STABLE, Watched

AHEAD = 50
OWN_DRIFTING = ["growing input", "rewarded growth", "growing input, squared", "growing residuals"]
OWN_STABLE = ["scores", "loud", "seasons", "warm-up"]
LISTED_DRIFTING = [forecast_runs.SECOND.drifting[at] for at in (0, 7, 10)]
LISTED_STABLE = [forecast_runs.SECOND.stable[at] for at in (0, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_DRIFTING)
def test_a_drifting_run_is_announced_fifty_steps_ahead(name: str) -> None:
    run = Watched(DRIFTING[name](1))
    assert run.overflowed is not None
    assert run.warned is not None
    assert run.overflowed - run.warned >= AHEAD
    told = [one for row in run.rows for one in row.warnings if one.warning == "overflow_ahead"]
    assert len({(one.module, one.place) for one in told}) == len(told)  # each line once
    assert any("drifts.py" in one.place for one in told)


@pytest.mark.slow
def test_growth_that_speeds_up_is_announced_late() -> None:
    run = Watched(DRIFTING["rewarded squares"](1))
    assert run.overflowed is not None
    assert run.warned is not None
    assert 0 < run.overflowed - run.warned < AHEAD


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_STABLE)
def test_a_stable_run_is_not(name: str) -> None:
    run = Watched(STABLE[name](1))
    assert run.overflowed is None
    assert run.warned is None


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("drift", LISTED_DRIFTING, ids=lambda one: one.name)
def test_a_drifting_run_of_a_list_is_announced(drift: Drift) -> None:
    run = Watched(drift.make(0))
    assert run.overflowed is not None
    assert run.warned is not None
    assert run.overflowed - run.warned >= AHEAD


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("drift", LISTED_STABLE, ids=lambda one: one.name)
def test_a_stable_run_of_a_list_is_not(drift: Drift) -> None:
    *rest, _ = drift.make(0)
    run = Watched((*rest, 400))  # type: ignore[arg-type]
    assert run.overflowed is None
    assert run.warned is None


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
def test_listed_runs_are_what_they_say_in_fp32() -> None:
    assert all(map(forecast_runs.drifts, LISTED_DRIFTING))
    assert all(map(forecast_runs.stays, LISTED_STABLE[1:]))


def test_there_are_twenty_of_each() -> None:
    for runs in (*forecast_runs.SECOND, *forecast_runs.THIRD):
        assert len({one.name for one in runs}) == len(runs) == 20
