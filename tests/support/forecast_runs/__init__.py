"""Runs to measure the forecast of overflows with: some that drift, and some that do not.

The first set was written when the rule of the forecast was final. After it had been measured, the rule was
changed, so it is ``SEEN``. ``DRIFTING`` and ``STABLE`` are the second: its models were written while the rule
was being changed, its list of runs afterwards. Settings were chosen by the FP32 reference alone.

Drifting runs leave the range of FP16 between step 150 and 1000. Stable ones do not, not even in
``BEYOND`` steps after their end.
"""

from __future__ import annotations

from halfguard.formats import FP16
from tests.support.forecast_runs.base import largest_outputs
from tests.support.forecast_runs.seen import DRIFTING as SEEN_DRIFTING
from tests.support.forecast_runs.seen import STABLE as SEEN_STABLE
from tests.support.forecast_runs.unseen import DRIFTING, STABLE
from tests.support.planted.base import Drift

BEYOND = 300

__all__ = ["DRIFTING", "SEEN_DRIFTING", "SEEN_STABLE", "STABLE", "drifts", "stays"]


def drifts(run: Drift, seed: int = 0) -> bool:
    """Train in FP32; return whether the run leaves the range of FP16, neither early nor late."""
    peaks = largest_outputs(run.make(seed))
    return 150 <= len(peaks) <= 1000 and not peaks[-1] <= FP16.largest


def stays(run: Drift, seed: int = 0) -> bool:
    """Train in FP32; return whether the run stays in the range of FP16, also after its end."""
    training = run.make(seed)
    return largest_outputs(training, training[4] + BEYOND)[-1] <= FP16.largest
