"""Statements in FP32: those that lead to a line, and their own casts to half, as trials and as patches."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from halfguard.repairs.applying import apply_patch
from halfguard.replaying.line_changes import SliceInFP32

SCHEDULE = """import torch
betas = torch.linspace(1e-4, 0.04, 1000).half()
unused = betas * 2
alpha_bar = torch.cumprod(1 - betas, 0)
snr = alpha_bar / (1 - alpha_bar)
"""


def run(script: Path, change: SliceInFP32 | None = None) -> dict[str, Any]:
    """Run a script, with a change of its lines."""
    if change is not None:
        change.begin()
    try:
        return runpy.run_path(str(script))
    finally:
        if change is not None:
            change._mode.__exit__(None, None, None)


def test_the_lines_that_lead_to_a_quotient_are_changed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCHEDULE)
    assert not run(script)["snr"].isfinite().all()
    change = SliceInFP32([(str(script), 5)])
    found = run(script, change)
    assert found["snr"].isfinite().all()
    assert found["unused"].dtype is torch.float32  # made of betas, whose cast is left out
    assert apply_patch(change.facts()["patch"], tmp_path)
    assert ".float()\nunused = betas * 2" in script.read_text()
    assert run(script)["snr"].isfinite().all()


def test_a_cast_whose_dtype_is_not_written_out_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        SCHEDULE.replace(".half()", ".to(dtype)").replace(
            "betas =", "dtype = torch.half\nbetas =", 1
        )
    )
    change = SliceInFP32([(str(script), 6)])
    assert run(script, change)["snr"].isfinite().all()
    assert apply_patch(change.facts()["patch"], tmp_path)
    assert "alpha_bar = torch.cumprod(1 - betas.float(), 0)\n" in script.read_text()


def test_a_line_without_half_tensors_has_no_patch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\na = torch.ones(3)\nb = a / 0\n")
    change = SliceInFP32([(str(script), 3)])
    run(script, change)
    assert not change.facts()["patch"]
