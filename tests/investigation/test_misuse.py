"""Calls that train wrongly without a bad number, in scripts that run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.records.script_answer import ScriptAnswer
from tests.investigation.command import SCRIPTS, ask, why

pytestmark = pytest.mark.slow


def test_clipping_of_scaled_gradients_and_a_schedule_that_runs_ahead_are_told(
    tmp_path: Path,
) -> None:
    answer = ask("clips_scaled.py", tmp_path)
    assert answer.outcome == "nothing bad"
    assert "clips_scaled.py:15: torch.nn.utils.clip_grad_norm_" in answer.advice
    assert "clips_scaled.py:18: schedule.step()" in answer.advice


def test_a_loop_that_uses_its_scaler_rightly_gets_no_advice(tmp_path: Path) -> None:
    right = (SCRIPTS / "clips_scaled.py").read_text("utf-8").replace("2.0**30", "2.0**10")
    clip = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    named = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
    named += "    torch.nn.utils.clip_grad_value_(parameters=model.parameters(), clip_value=1.0)"
    right = right.replace(clip, f"    scaler.unscale_(optimizer)\n{named}")
    right += "assert not torch.isnan(input=loss)\n"
    (tmp_path / "right.py").write_text(right, "utf-8")
    answer = ScriptAnswer.from_json(why("--json", "right.py", cwd=tmp_path).stdout)
    assert answer.outcome == "nothing bad"
    assert answer.advice == ""


def test_ranks_that_the_script_starts_are_told_not_to_be_seen(tmp_path: Path) -> None:
    answer = ask("spawns_ranks.py", tmp_path)
    assert answer.outcome == "no training"
    assert any("torchrun" in note for note in answer.notes)


def test_clipping_of_another_network_without_a_scaler_is_not_blamed(tmp_path: Path) -> None:
    two = (SCRIPTS / "clips_scaled.py").read_text("utf-8").replace("2.0**30", "2.0**10")
    two = two.replace("optimizer.zero_grad()", "model(x).mean().backward(); optimizer.zero_grad()")
    (tmp_path / "two.py").write_text(two, "utf-8")
    answer = ScriptAnswer.from_json(why("--json", "two.py", cwd=tmp_path).stdout)
    assert answer.outcome == "nothing bad"
    assert "clipped" not in answer.advice
