"""Counts agree with counting by hand, over epochs and across a stop and a resume."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import RecordError, UsageError
from halfguard.journal import StepCounter
from halfguard.records import Action, Cause, HealthWarning, Summary

Step = tuple[Action, Cause | None, float, float]

one_step = st.tuples(
    st.sampled_from(Action),
    st.sampled_from(Cause),
    st.floats(min_value=0),
    st.sampled_from([1.0, 2.0, 4.0]),
)
epochs_of_steps = st.lists(st.lists(one_step, max_size=12), min_size=1, max_size=4)


def by_hand(steps: list[Step], epoch: int | None, earlier: list[Step]) -> Summary:
    """Return the same counts, computed from all steps at once."""
    before = [s for s in earlier if s[0] != Action.ACCUMULATE]
    real = [s for s in steps if s[0] != Action.ACCUMULATE]
    applied = [s for s in real if s[0] in (Action.APPLY, Action.RETRY)]
    scales = [s[3] for s in before[-1:] + real]
    return Summary(
        epoch=epoch,
        steps=len(real),
        applied=len(applied),
        retried=sum(s[0] == Action.RETRY for s in real),
        skipped=Counter(s[1] for s in real if s[0] in (Action.SKIP, Action.HALT) and s[1]),
        rollbacks=sum(s[0] == Action.ROLL_BACK for s in real),
        scale=scales[-1] if scales else 1.0,
        scale_reductions=sum(b < a for a, b in pairwise(scales)),
        grad_norm_min=min([s[2] for s in applied], default=float("inf")),
        grad_norm_max=max([s[2] for s in applied], default=0.0),
    )


@given(epochs_of_steps, st.booleans())
def test_it_counts_what_a_list_would(epochs: list[list[Step]], resumed: bool) -> None:
    counter = StepCounter()
    past: list[Step] = []
    for number, steps in enumerate(epochs):
        for step in steps:
            if resumed:
                state = json.loads(json.dumps(counter.state_dict(), allow_nan=False))
                counter = StepCounter()
                counter.load_state_dict(state)
            counter.add(*step)
        epoch = counter.summary(number)
        assert epoch == by_hand(steps, number, past)
        past += steps
        assert counter.summary() == by_hand(past, None, [])
        assert epoch.applied + sum(epoch.skipped.values()) + epoch.rollbacks == epoch.steps
        counter.next_epoch()


def test_a_nan_norm_changes_no_range() -> None:
    counter = StepCounter()
    for norm in (float("nan"), 2.0, float("nan"), 3.0):
        counter.add(Action.APPLY, None, norm, 1.0)
    assert (counter.summary().grad_norm_min, counter.summary().grad_norm_max) == (2.0, 3.0)


@pytest.mark.parametrize("action", [Action.SKIP, Action.HALT])
def test_what_was_not_applied_needs_a_cause(action: Action) -> None:
    counter = StepCounter()
    with pytest.raises(UsageError, match="without a cause"):
        counter.add(action, None, 1.0, 1.0)
    assert counter.summary() == Summary()


def test_a_summary_does_not_change_afterwards() -> None:
    counter = StepCounter()
    counter.add(Action.SKIP, Cause.BAD_BATCH, 1.0, 1.0)
    summary = counter.summary(0)
    counter.add(Action.SKIP, Cause.BAD_BATCH, 1.0, 1.0)
    assert summary.skipped == {Cause.BAD_BATCH: 1}


def test_an_invalid_state_is_refused_and_changes_nothing() -> None:
    counter = StepCounter()
    counter.add(Action.APPLY, None, 1.0, 1.0)
    before: dict[str, object] = {**counter.state_dict()}
    bad = [
        {},
        before | {"epoch": None},
        before | {"epoch": "{}"},
        before | {"scale": []},
        before | {"scale": "x"},
    ]
    for state in bad:
        with pytest.raises(RecordError):
            counter.load_state_dict(state)
        assert counter.state_dict() == before


def test_a_reduction_belongs_to_the_epoch_of_its_overflow() -> None:
    counter = StepCounter()
    counter.add(Action.SKIP, Cause.GRADIENT_OVERFLOW, 1.0, 8.0)
    counter.set_scale(4.0)  # what the overflow made of it
    assert counter.summary(0).scale_reductions == 1
    assert counter.summary(0).scale == 4.0
    counter.next_epoch()
    counter.add(Action.APPLY, None, 1.0, 4.0)
    assert counter.summary(1).scale_reductions == 0
    assert counter.summary().scale_reductions == 1


def test_before_the_first_step_there_is_no_scale() -> None:
    counter = StepCounter()
    counter.set_scale(65536.0)
    assert counter.summary() == Summary()


def test_a_warning_is_counted_in_its_epoch_and_in_the_run() -> None:
    counter = StepCounter()
    counter.add_warning(HealthWarning.LOW_SCALE)
    counter.add_warning(HealthWarning.LOW_SCALE)
    assert counter.summary(0).warnings == (HealthWarning.LOW_SCALE,)
    assert "warnings: low_scale" in str(counter.summary(0))
    counter.next_epoch()
    assert counter.summary(1).warnings == ()
    again = StepCounter()
    again.load_state_dict(json.loads(json.dumps(counter.state_dict())))
    assert again.summary().warnings == (HealthWarning.LOW_SCALE,)
