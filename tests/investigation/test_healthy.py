"""Healthy programs are not called bad, and the check of that can fail."""

from __future__ import annotations

import pytest
from benchmarks.why_truth.healthy import problem, programs

from halfguard.records.script_answer import ScriptAnswer
from tests.support.docs import ROOT
from tests.support.programs import captured


def test_an_answer_that_calls_a_healthy_program_bad_is_a_problem() -> None:
    bad = ScriptAnswer(script="program.py", outcome="non-finite value", event="the loss")
    assert "the loss" in problem(bad)
    assert problem(ScriptAnswer(script="program.py", outcome="crashed", error="KeyError"))
    assert not problem(ScriptAnswer(script="program.py", outcome="nothing bad"))


def test_skipped_steps_are_explained() -> None:
    skips = "initial loss scale 65536, final loss scale 32768; 1 step skipped"
    answer = ScriptAnswer(script="program.py", outcome="nothing bad", loss_scale=skips)
    assert not problem(answer)


def test_at_least_twenty_programs_are_not_held_out() -> None:
    seen = programs([], is_held_out=False)
    assert len(seen) >= 20
    assert not {path.name for path in seen} & {p.name for p in programs([], is_held_out=True)}


@pytest.mark.slow
def test_two_programs_of_the_casebook() -> None:
    env = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = captured("scripts/bench", "why_truth", "--healthy", "906", "912", env=env)
    assert "2 healthy programs, 0 wrong answers" in done.stdout, done.stdout + done.stderr
    assert "1 step skipped" in done.stdout
