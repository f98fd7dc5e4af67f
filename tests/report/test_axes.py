"""Axes cover their numbers, however close or far apart they are."""

from __future__ import annotations

import math

import pytest

from halfguard.report.axes import fit_axis


@pytest.mark.parametrize("value", [1e-300, 1.0, 1e299])
def test_neighbours_have_room_on_a_logarithmic_axis(value: float) -> None:
    axis = fit_axis([value, math.nextafter(value, math.inf)], 0.0, 100.0, log=True)
    assert 0.0 <= axis.at(value) <= 100.0
