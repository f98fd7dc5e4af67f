"""The example that the tutorial shows: short, quick, and saying what the page says it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.support.docs import ROOT
from tests.support.forks import forked_python
from tests.support.programs import captured

SCRIPT = ROOT / "examples" / "quickstart.py"


@pytest.fixture(scope="module")
def table() -> dict[str, list[float]]:
    """Batches learnt, repeated in FP32, loss scale and validation loss of each run."""
    result = captured(forked_python(), "-W", "error", SCRIPT)
    assert result.returncode == 0, result.stderr
    rows = [line.rsplit(maxsplit=4) for line in result.stdout.splitlines()[1:]]
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def test_it_is_short() -> None:
    assert len(Path(SCRIPT).read_text().splitlines()) < 60


@pytest.mark.slow
def test_the_bare_run_breaks(table: dict[str, list[float]]) -> None:
    learnt, _, scale, loss = table["FP16, torch.amp"]
    assert learnt < 600
    assert scale == 0
    assert math.isnan(loss)


@pytest.mark.slow
def test_the_guarded_run_equals_fp32(table: dict[str, list[float]]) -> None:
    learnt, repeated, scale, loss = table["FP16, halfguard"]
    fp32_learnt, _, _, fp32_loss = table["FP32 without the bad batch"]
    assert learnt == fp32_learnt == 800
    assert 200 <= repeated < 220  # every fourth batch overflows
    assert scale >= 1024
    assert loss == pytest.approx(fp32_loss, rel=0.05)


@pytest.mark.slow
def test_the_healed_run_repeats_next_to_nothing(table: dict[str, list[float]]) -> None:
    learnt, repeated, _, loss = table["FP16, halfguard, healed"]
    assert learnt == 800
    assert repeated < 20
    assert loss < 1.1 * table["FP32 without the bad batch"][-1]
