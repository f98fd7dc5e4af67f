"""The page of an answer: what it says about a bad number, a good run and a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfguard.records.audit import AuditFinding
from halfguard.records.autopsy import Culprit, Cure, ReplayTrial, TensorRange
from halfguard.records.script_answer import InFP32, ScriptAnswer
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.script_answer import script_answer_page

RANGE = TensorRange("self", (8, 32), "float16", -12.0, 15.5, 0, 0, 0)
BAD = ScriptAnswer(
    script="train.py --lr 1",
    outcome="non-finite value",
    precision="FP16 autocast",
    steps=7,
    backward=7,
    seconds=1.5,
    step=7,
    bad_backward=7,
    event="the loss was NaN or Inf when its backward pass started",
    loss=float("inf"),
    culprit=Culprit(
        kind="op",
        op="exp",
        phase="forward",
        module="block",
        file="train.py",
        line=17,
        code="h = h.exp()",
        dtype="float16",
        inputs=(RANGE,),
    ),
    in_fp32="fine",
    trials=(ReplayTrial(name="the whole step in FP32", good=True, loss=1.25, grad_norm=0.5),),
    cure=Cure(what="precision", sentence="Train in fp32.", trial="the whole step in FP32"),
    rank=1,
    notes=("The script wrote /data/x; this was not isolated.",),
)


def test_a_bad_number() -> None:
    text = to_markdown(script_answer_page(BAD))
    assert "Step 7 (FP16 autocast): the loss was NaN or Inf" in text
    assert "In FP32 this step is fine. Fix for this step: compute the whole step in FP32." in text
    assert "It began on rank 1." in text
    assert "train.py:17" in text
    assert "this was not isolated" in text


@pytest.mark.parametrize(
    "event",
    [
        "20 steps in a row were skipped; the loss scale is 65536",
        "the loss scale fell to 0.5 and the gradients were still NaN or Inf",
        "the last 3 steps were skipped",
        "the script crashed after a step that was skipped",
    ],
)
def test_an_event_that_is_a_clause_is_one_in_the_page(event: str) -> None:
    text = to_markdown(script_answer_page(BAD.model_copy(update={"event": event})))
    assert f"Step 7 (FP16 autocast): {event}" in text
    assert f"in 1.5 s. Then {event}." in text


def test_a_cast_and_a_bad_input_are_named_as_such() -> None:
    assert BAD.culprit is not None
    cast, given = replace(BAD.culprit, op="to"), replace(BAD.culprit, kind="input", name="x")
    texts = [
        to_markdown(script_answer_page(BAD.model_copy(update={"culprit": one})))
        for one in (cast, given)
    ]
    assert "In short: the cast `to` returned the first NaN or Inf" in texts[0]
    assert "In short: the input `x` contained NaN or Inf before the step" in texts[1]


def test_a_good_run_tells_calibration_and_what_to_try() -> None:
    answer = ScriptAnswer(
        script="train.py",
        outcome="nothing bad",
        precision="BF16 autocast",
        steps=23,
        backward=30,
        loss=0.5,
        loss_scale="initial loss scale 65536, final loss scale 8192; 10 steps skipped",
        headroom="In the first 3 backward passes the largest 16-bit magnitude was 12.",
        next="halfguard lint .",
    )
    text = to_markdown(script_answer_page(answer))
    assert (
        "No NaN or Inf in 30 backward passes, except where the scaler skipped the step (BF16 autocast)"
        in text
    )
    assert "Skipped steps are normal only at the start, while the loss scale calibrates." in text
    assert "halfguard lint ." in text
    none = answer.model_copy(
        update={"loss_scale": "initial loss scale 1, final loss scale 1; 0 steps skipped"}
    )
    assert "calibrating" not in to_markdown(script_answer_page(none))


def test_the_title_is_the_worst_finding() -> None:
    wrong = ScriptAnswer(
        script="train.py", outcome="trains wrongly", precision="FP16 autocast", backward=30
    )
    title = script_answer_page(wrong).title
    assert title.startswith("The script trains wrongly (FP16 autocast): no NaN or Inf in 30")
    overflow = AuditFinding(
        op="mul",
        kernel="aten.mul.Tensor",
        phase="forward",
        module=None,
        file="train.py",
        line=9,
        code="",
        fault="overflow",
        elements=3,
        numel=8,
        half=RANGE,
        fp32=RANGE,
        use="loss",
    )
    swallowed = wrong.model_copy(update={"swallowed": (overflow,)})
    assert script_answer_page(swallowed).title.startswith("An overflow was swallowed at train.py:9")


def test_an_answer_survives_json() -> None:
    assert ScriptAnswer.from_json(BAD.to_json()) == BAD


def with_trial(trial: str, *trials: ReplayTrial) -> str:
    cure = BAD.cure.model_copy(update={"trial": trial})
    answer = BAD.model_copy(update={"cure": cure, "trials": (*BAD.trials, *trials)})
    return to_markdown(script_answer_page(answer))


def test_a_fix_is_one_with_which_the_script_trains_on() -> None:
    text = with_trial("a; the patched script, run from the start")
    assert "Fix: use a. Verified on this step and by running the patched script" in text
    text = with_trial("the patched script, run from the start")
    assert "The patch below was verified by running the patched script" in text
    failed = ReplayTrial(name="the script, patched: a", good=False)
    text = with_trial("a", failed)
    assert "Fix for this step: use a. The patched script failed at a later step." in text
    assert "erified" not in text


def test_columns_without_an_entry_are_left_out() -> None:
    assert "largest scale" not in to_markdown(script_answer_page(BAD))
    scaled = ReplayTrial(name="a line", good=True, largest_scale=1024.0)
    text = with_trial("a line", scaled)
    assert "largest scale" in text
    assert "| nan" not in text


def test_one_step_is_not_plural() -> None:
    text = to_markdown(script_answer_page(BAD.model_copy(update={"steps": 1, "backward": 1})))
    assert "ran 1 optimizer step (1 backward pass) in 1.5 s." in text


def test_no_page_shows_a_secret_of_the_command_or_of_its_output() -> None:
    command = "bad.py --token hunter2"
    secrets = {
        "script": command,
        "next": f"halfguard why --emulate {command}",
        "error": "ValueError: login failed: token=hunter2",
        "log": 'line\n  "password": "hunter2"\n    Bearer hunter2',
    }
    for outcome in ("crashed", "non-finite value"):
        page = script_answer_page(BAD.model_copy(update={**secrets, "outcome": outcome}))
        for text in (to_html(page), to_markdown(page)):
            assert "hunter2" not in text
            assert "bad.py --token" in text


STEP, SCRIPT = "the whole step in FP32", "the script in FP32, from its first line"


@pytest.mark.parametrize(
    ("in_fp32", "step", "script", "told"),
    [
        ("fine", True, True, "In FP32 this step is fine."),
        ("fine", False, True, "with this step alone in FP32 it does not."),
        ("fails", True, False, "In FP32 this step is fine, but run in FP32 from its first line"),
        ("fails", False, False, "In FP32 this step fails as well"),
    ],
)
def test_what_fp32_changes_agrees_with_its_trials(
    in_fp32: InFP32, step: bool, script: bool, told: str
) -> None:
    trials = (ReplayTrial(name=STEP, good=step), ReplayTrial(name=SCRIPT, good=script))
    answer = BAD.model_copy(update={"in_fp32": in_fp32, "trials": trials, "cure": None})
    assert told in to_markdown(script_answer_page(answer))


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("stopped after 149 steps", "start (stopped after 149 steps; later steps are untested)."),
        ("ended after 400 steps", "from the start (it was not compared with FP32)."),
        ("ended after 400 steps; printed acc: 0.9 (FP32: 0.9)", "from the start."),
    ],
)
def test_how_far_a_patch_was_verified_is_told(note: str, told: str) -> None:
    proof = "the patched script, run from the start"
    cure = Cure(what="operation", sentence="Keep it in FP32.", trial=proof)
    update = {"cure": cure, "trials": (ReplayTrial(name=proof, good=True, note=note),)}
    assert told in to_markdown(script_answer_page(BAD.model_copy(update=update)))


def test_a_silent_fault_begins_with_what_it_is_and_whether_it_was_fixed() -> None:
    answer = ScriptAnswer(
        script="train.py",
        outcome="trains wrongly",
        backward=9,
        advice="Gradients were clipped at train.py:7: clip(x). Unscale them first.",
    )
    text = to_markdown(script_answer_page(answer))
    told = "In short: gradients were clipped at train.py:7: clip(x). No fix was tested."
    assert told in text.replace("\\", "")
    failed = ReplayTrial(name="the script, patched: a", good=False)
    text = to_markdown(script_answer_page(answer.model_copy(update={"trials": (failed,)})))
    assert "No fix was tested" not in text
    assert "The patches that were tested do not fix the script." in text


def test_a_finite_step_with_wrong_gradients_is_not_called_good() -> None:
    text = with_trial("a", ReplayTrial(name="b", good=True, error_as_written=59.3))
    assert "finite, but far from FP32" in text


def test_skipped_steps_are_in_the_title_of_a_good_run() -> None:
    scaler = "initial loss scale 65536, final loss scale 8192; 3 steps skipped"
    answer = ScriptAnswer(script="a.py", outcome="nothing bad", backward=9, loss_scale=scaler)
    assert script_answer_page(answer).title.endswith("except where the scaler skipped the step")
