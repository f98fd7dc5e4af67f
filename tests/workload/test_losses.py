"""The one number for a run's losses."""

from __future__ import annotations

import math

import pytest

from halfguard.workload import final_loss


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([5.0], 5.0),
        ([9.0, 1.0], 1.0),
        ([9.0] * 8 + [1.0, 3.0], 2.0),
        ([1.0, 1.0, 1.0, 1.0, math.inf], math.inf),
    ],
)
def test_the_last_fifth_counts(losses: list[float], expected: float) -> None:
    assert final_loss(losses) == expected


def test_no_loss_is_no_number() -> None:
    assert math.isnan(final_loss([]))
