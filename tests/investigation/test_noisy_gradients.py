"""Small gradients that kept their norm in FP16 are told if they are mostly rounding errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfguard.investigation.lost_gradients import confirm_lost_gradients
from halfguard.investigation.passes import Made, Misused, PassResult, TrialPlan, TrialResult
from halfguard.records.autopsy import ReplayTrial

FULL = np.full(8, 1e-6)


class Runs:
    """Answers a trial with prepared gradients: those of FP32, or those of the step as it is."""

    def __init__(self, folder: Path, half: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        self._folder, self._half = folder, half

    def run(
        self, _kind: str, _doing: str, *, event: Any, change: TrialPlan | None = None
    ) -> PassResult:
        assert event.backward == 3
        plan = change or TrialPlan(name="fp32", kind="fp32")
        file = self._folder / plan.kind
        file.write_bytes((FULL if change is None else self._half).tobytes())
        trial = ReplayTrial(name=plan.name, good=True)
        result = TrialResult(plan=plan, trial=trial, gradients=str(file))
        return PassResult(trials=(result,))


@pytest.mark.parametrize(("factor", "told"), [(-1.0, True), (1.01, False)])
def test_gradients_of_the_right_size_and_the_wrong_direction(
    tmp_path: Path, factor: float, told: bool
) -> None:
    half = FULL * factor
    norm = float(np.linalg.norm(half))
    misused = Misused(kind="no scaler", sentence="", backward=3, norms=(norm,), sizes=(8,))
    first = PassResult(made=Made(autocast_device="cpu"))
    runs: Any = Runs(tmp_path, half)
    assert bool(list(confirm_lost_gradients(runs, first, misused))) is told
