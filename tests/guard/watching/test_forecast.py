"""An overflow is announced while the run drifts towards it, and a stable run is left in peace.

A small sample; ``scripts/soak watch`` has all runs, with those that the forecast gets wrong.
"""

from __future__ import annotations

import pytest
from benchmarks.models.forecast_runs import FIRST, SECOND, THIRD, drifts, stays
from benchmarks.models.planted import Drift

from tests.guard.watching.watched import Watched

pytestmark = pytest.mark.usefixtures("seed")

AHEAD = 50
DRIFTING = [FIRST.drifting[17], *(SECOND.drifting[at] for at in (0, 7, 10))]
STABLE = [FIRST.stable[17], *(SECOND.stable[at] for at in (0, 1, 8, 10))]


@pytest.mark.slow
@pytest.mark.parametrize("drift", DRIFTING, ids=lambda one: one.name)
def test_a_drifting_run_is_announced_fifty_steps_ahead(drift: Drift) -> None:
    run = Watched(drift.make(0))
    assert run.overflowed is not None
    assert run.warned is not None
    assert run.overflowed - run.warned >= AHEAD
    told = [one for row in run.rows for one in row.warnings if one.warning == "overflow_ahead"]
    assert len({(one.module, one.place) for one in told}) == len(told)  # each line once
    assert any("forecast_runs" in one.place for one in told)


@pytest.mark.slow
@pytest.mark.parametrize("drift", STABLE, ids=lambda one: one.name)
def test_a_stable_run_is_not(drift: Drift) -> None:
    *rest, _ = drift.make(0)
    run = Watched((*rest, 400))  # type: ignore[arg-type]
    assert run.overflowed is None
    assert run.warned is None


@pytest.mark.slow
def test_the_runs_are_what_they_say_in_fp32() -> None:
    assert all(map(drifts, DRIFTING))
    assert stays(STABLE[-1])


def test_there_are_twenty_of_each() -> None:
    for runs in (*SECOND, *THIRD):
        assert len({one.name for one in runs}) == len(runs) == 20
