"""Runs to measure the forecast of overflows with: some that drift, and some that do not.

The rule of the forecast was final when each list was first measured. After that, it was changed, and the
first two became material to tune it on. So only ``THIRD`` and ``FOURTH`` tell how good the rule is on runs
that it has not seen; other authors wrote them. Settings were chosen by the FP32 reference alone; those of
``FOURTH`` by an FP16 run without a guard as well, because six drifting runs of ``THIRD`` do not overflow in
an FP16 forward pass. It has six in their place, and no stable ones.

Drifting runs leave the range of FP16 between step 150 and 1000. Stable ones do not, not even in
``BEYOND`` steps after their end.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.models.forecast_runs import first, fourth, second, third
from benchmarks.models.forecast_runs.base import largest_outputs
from benchmarks.models.planted.base import Drift
from halfguard.formats import FP16

BEYOND = 300


class Runs(NamedTuple):
    """Runs that leave the range of FP16, and runs that do not."""

    drifting: tuple[Drift, ...]
    stable: tuple[Drift, ...]


FIRST = Runs(first.DRIFTING, first.STABLE)
SECOND = Runs(second.DRIFTING, second.STABLE)
THIRD = Runs(third.DRIFTING, third.STABLE)
FOURTH = Runs(fourth.DRIFTING, ())


def drifts(run: Drift, seed: int = 0) -> bool:
    """Train in FP32; return whether the run leaves the range of FP16, neither early nor late."""
    peaks = largest_outputs(run.make(seed))
    return 150 <= len(peaks) <= 1000 and not peaks[-1] <= FP16.largest


def stays(run: Drift, seed: int = 0) -> bool:
    """Train in FP32; return whether the run stays in the range of FP16, also after its end."""
    training = run.make(seed)
    return largest_outputs(training, training[4] + BEYOND)[-1] <= FP16.largest
