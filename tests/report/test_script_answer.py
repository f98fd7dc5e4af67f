"""The page of an answer: what it says about a bad number, a good run and a crash."""

from __future__ import annotations

from halfguard.records.autopsy import Cure, ReplayTrial
from halfguard.records.culprit import Culprit, TensorRange
from halfguard.records.script_answer import ScriptAnswer
from halfguard.report import script_answer_page, to_html, to_markdown

RANGE = TensorRange("self", (8, 32), "float16", -12.0, 15.5, 0, 0, 0)
BAD = ScriptAnswer(
    script="train.py --lr 1",
    outcome="bad number",
    steps=7,
    backward=7,
    seconds=1.5,
    step=7,
    bad_backward=7,
    event="the loss, at its backward pass",
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
    trials=(ReplayTrial(name="the whole step in fp32", good=True, loss=1.25, grad_norm=0.5),),
    cure=Cure(what="precision", sentence="Train in fp32.", trial="the whole step in fp32"),
    rank=1,
    notes=("The script wrote /data/x; this was not isolated.",),
)


def test_a_bad_number() -> None:
    text = to_markdown(script_answer_page(BAD))
    assert "Step 7: the first bad number was in the loss" in text
    assert "In FP32 this step is fine. Fixed by: the whole step in fp32." in text
    assert "It began on rank 1." in text
    assert "train.py:17" in text
    assert "this was not isolated" in text


def test_the_page_is_safe_and_has_a_drawing() -> None:
    page = to_html(script_answer_page(BAD.model_copy(update={"script": "<script>x</script>"})))
    assert "<script>" not in page
    assert "<svg" in page


def test_a_good_run_tells_calibration_and_what_to_try() -> None:
    answer = ScriptAnswer(
        script="train.py",
        outcome="nothing bad",
        steps=23,
        backward=30,
        loss=0.5,
        loss_scale="loss scale 65536 at first, 8192 at last; 10 steps skipped",
        headroom="In the first 3 backward passes the largest half number was 12.",
        next="halfguard lint .",
    )
    text = to_markdown(script_answer_page(answer))
    assert "No bad number in 30 backward passes" in text
    assert "how a loss scale finds its level" in text
    assert "halfguard lint ." in text
    none = answer.model_copy(
        update={"loss_scale": "loss scale 1 at first, 1 at last; 0 steps skipped"}
    )
    assert "finds its level" not in to_markdown(script_answer_page(none))


def test_an_answer_survives_json() -> None:
    assert ScriptAnswer.from_json(BAD.to_json()) == BAD
