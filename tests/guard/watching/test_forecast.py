"""An overflow is announced while the run drifts towards it, and a stable run is left in peace."""

from __future__ import annotations

import pytest

from tests.guard.watching.drifts import DRIFTING, STABLE, Watched

AHEAD = 50


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIFTING)
def test_a_drifting_run_is_announced_fifty_steps_ahead(name: str) -> None:
    run = Watched(DRIFTING[name](1))
    assert run.overflowed is not None
    assert run.warned is not None
    assert run.overflowed - run.warned >= AHEAD
    told = [one for row in run.rows for one in row.warnings if one.warning == "overflow_ahead"]
    assert len({(one.module, one.place) for one in told}) == len(told)  # each line once
    assert any("drifts.py" in one.place for one in told)


@pytest.mark.slow
@pytest.mark.parametrize("name", STABLE)
def test_a_stable_run_is_not(name: str) -> None:
    run = Watched(STABLE[name](1))
    assert run.overflowed is None
    assert run.warned is None
