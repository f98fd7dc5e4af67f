"""A run is worse than FP32 if it learns much less, beyond noise."""

from __future__ import annotations

import math

import pytest

from halfguard.investigation.passes import Event, PassResult
from halfguard.investigation.reference import Reference

GOOD = PassResult(ended="finished", steps=40, backward=40)
FALLING = [1.0 / (step + 1) for step in range(40)]
EVENT = Event(kind="loss", backward=9, step=9, how="the loss")


@pytest.mark.parametrize(
    ("losses", "worse"),
    [
        (FALLING, False),
        ([loss * 1.2 for loss in FALLING], False),
        ([1.0] * 5 + FALLING[:35], False),  # some steps were skipped at first
        ([1.0] * 40, True),
        ([*FALLING[:20], *[math.nan] * 20], True),
        (FALLING[:6], False),  # too few to tell
    ],
)
def test_a_run_is_compared_with_fp32_at_its_end(losses: list[float], worse: bool) -> None:
    assert bool(Reference(GOOD, FALLING).worse(losses)) is worse


def test_a_loss_may_rise_at_first() -> None:
    rising = [*[0.2] * 10, *[0.4] * 10, *[0.3] * 10, *[0.2] * 10]
    assert not Reference(GOOD, rising).worse(rising)
    assert Reference(GOOD, rising).worse([*rising[:30], *[0.33] * 10])


def test_noise_and_losses_that_do_not_fall_are_no_measure() -> None:
    noisy = [float(step % 2) for step in range(40)]  # two networks in turn
    assert not Reference(GOOD, noisy).worse([1.0] * 40)
    assert not Reference(GOOD, [0.5] * 40).worse([0.6] * 40)
    failed = PassResult(ended="event", event=EVENT, steps=9, backward=9)
    assert not Reference(failed, FALLING).worse([1.0] * 40)


def test_a_run_that_diverges_is_worse_however_much_its_losses_vary() -> None:
    diverging = [*FALLING[:21], 0.1, 0.1, 0.1, 5e6, 11e6, 12e6, 13e6]
    assert Reference(GOOD, FALLING).worse(diverging)


def test_fp32_decides_from_the_first_line_on() -> None:
    assert Reference(GOOD, []).judge(EVENT) == "fine"
    later = EVENT.model_copy(update={"step": 50})
    assert Reference(GOOD, []).judge(later) == "unknown"
    assert Reference(GOOD.model_copy(update={"event": EVENT}), []).judge(EVENT) == "fails"
    crashed = PassResult(ended="crashed", error="KeyError", steps=40, backward=40)
    assert Reference(crashed, []).judge(EVENT) == "unknown"


def test_losses_are_shown_at_the_same_backward_passes() -> None:
    longer = [*(loss * 2 for loss in FALLING), *[0.0] * 100]
    text = Reference(GOOD, FALLING).compare(longer)
    assert text == "median loss of backward passes 31 to 40: 0.05635 (FP32: 0.02817)"
    assert not Reference(GOOD, FALLING).compare(FALLING[:6])
