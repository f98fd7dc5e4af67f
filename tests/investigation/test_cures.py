"""The choice of a cure is a pure function of what the trials showed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from halfguard.investigation.advice import advise
from halfguard.investigation.cures import judge_fp32, list_cures
from halfguard.investigation.passes import (
    Event,
    Made,
    PassResult,
    TrialKind,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.proof import best_tried
from halfguard.records.autopsy import Culprit, ReplayTrial

LOSS = Event(kind="loss", backward=4, step=4, how="the loss")


def culprit(**facts: Any) -> Culprit:
    given: dict[str, Any] = {
        "kind": "op", "op": "exp", "phase": "forward", "module": "block", "file": "train.py",
        "line": 7, "code": "h = h.exp()", "dtype": "float16",
    }  # fmt: skip
    return Culprit(**(given | facts))


def trial(kind: TrialKind, good: bool, **facts: Any) -> TrialResult:
    plan = TrialPlan(name=f"trial of {kind}", kind=kind, module="block", scale=256.0)
    error = facts.pop("error", None)
    run = ReplayTrial(name=plan.name, good=good, loss=1.0, grad_norm=1.0, error_as_written=error)
    return TrialResult(plan=plan, trial=run, **facts)


def found(*trials: TrialResult, exact: float = math.nan, **facts: Any) -> PassResult:
    return PassResult(culprit=culprit(**facts), exact=exact, trials=trials, autocast="float16")


def test_an_operation_that_is_exact_comes_before_a_module_in_fp32() -> None:
    exact = trial("stable", True, stable=("normalize",))
    cure = best_tried(list_cures(found(trial("fp32", True), trial("island", True), exact), LOSS))
    assert cure.what == "operation"
    assert "halfguard.ops.normalize" in cure.sentence


def test_a_limit_far_from_fp32_comes_after_another_format() -> None:
    limit = trial("stable", True, stable=("exp",), limits=True, error=0.96)
    cure = best_tried(list_cures(found(trial("fp32", True), trial("bf16", True), limit), LOSS))
    assert cure.what == "precision"
    close = trial("stable", True, stable=("exp",), limits=True, error=0.01)
    cure = best_tried(list_cures(found(trial("fp32", True), trial("bf16", True), close), LOSS))
    assert cure.what == "operation"


def test_a_line_with_wrong_gradients_is_not_recommended() -> None:
    line = trial("statement", True, error=4.98)
    cures = list_cures(found(trial("fp32", True), line), LOSS)
    assert line.trial.name not in [cure.trial for cure in cures]
    cure = best_tried(cures)
    assert (cure.what, cure.trial) == ("precision", "trial of fp32")


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ((), "no smaller change was tried."),
        ((trial("statement", False),), "no smaller change that was tried fixes the step."),
        ((trial("bf16", True, error=0.33),), "at least 33% from those of FP32."),
        ((trial("bf16", True, error=0.01),), "no smaller change has a patch that was verified."),
    ],
)
def test_fp32_everywhere_tells_what_is_known_of_smaller_changes(
    others: tuple[TrialResult, ...], why: str
) -> None:
    cures = list_cures(found(trial("fp32", True), *others), LOSS)
    (full,) = (cure for cure in cures if cure.sentence.startswith("Train in fp32"))
    assert full.sentence.endswith(why)


def test_numbers_that_a_cast_of_the_user_is_too_small_for_stay_in_fp32(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("x = rows.to(self.dtype)\n")
    cast = found(exact=99999.0, op="to", module=None, file=str(file), line=1)
    (cure,) = list_cures(cast, LOSS)
    assert "Values up to 99999 do not fit into float16" in cure.sentence
    assert "+x = rows.float()" in cure.patch
    assert list_cures(found(op="to", phase="backward", file=str(file), line=1), LOSS) == []


def test_a_scale_is_blamed_if_the_gradients_fit_without_it() -> None:
    event = Event(kind="scale", backward=9, step=3, how="20 in a row", scale=65536.0)
    tried = (trial("fp32", True), trial("bf16", True), trial("scale", True))
    cure = best_tried(list_cures(found(*tried, exact=70000.0, phase="backward"), event))
    assert cure.what == "scale"
    assert "init: 256.0" in cure.patch


def test_without_a_good_trial_there_is_advice_and_no_cure() -> None:
    result = found(trial("fp32", False), exact=math.inf)
    assert judge_fp32(result.trials) == "fails"
    assert best_tried(list_cures(result, LOSS)) is None
    assert "in any precision" in advise(result, LOSS, "fails")
    assert "already rounded an input to 0" in advise(result, LOSS, "fine")
    assert "the data" in advise(found(kind="input", name="x"), LOSS, "unknown")


def test_fp32_is_unknown_without_its_trial() -> None:
    assert judge_fp32(()) == "unknown"


def optimizer_step(dtype: str, **made: Any) -> PassResult:
    facts = found(trial("fp32", True), op="addcdiv", module=None, dtype=dtype)
    return facts.model_copy(update={"made": Made(**made)})


def test_eps_is_blamed_in_float16_only_and_only_if_there_is_one() -> None:
    event = Event(kind="parameters", backward=0, step=0, how="parameters")
    adam = {"optimizer_class": "Adam", "eps": 1e-8}

    def said(result: PassResult) -> str:
        return " ".join(cure.sentence for cure in list_cures(result, event))

    assert "its eps is 0" in said(optimizer_step("float16", **adam))
    for other in (optimizer_step("bfloat16", **adam), optimizer_step("float16")):
        assert "Keep the weights in FP32" in said(other)
        assert "eps" not in said(other)


def test_an_epsilon_is_no_advice_for_bfloat16() -> None:
    half = found(exact=math.inf, dtype="float16")
    assert "epsilon that is not 0" in advise(half, LOSS, "fine")
    brain = found(exact=math.inf, dtype="bfloat16").model_copy(update={"autocast": "bfloat16"})
    assert "epsilon" not in advise(brain, LOSS, "fine")


def test_a_batch_of_bad_data_is_left_out_before_its_backward_pass(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nfor x in data:\n    loss = f(x)\n    loss.backward()\n")
    event = LOSS.model_copy(update={"place": (str(script), 4)})
    cures = list_cures(found(trial("fp32", False), kind="input", name="x"), event)
    assert [cure.code for cure in cures] == ["HG612"]
    assert "+    if not torch.isfinite(loss):\n+        continue\n" in cures[0].patch
    assert list_cures(found(trial("fp32", False)), event) == []  # an operation is to blame
