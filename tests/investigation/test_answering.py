"""The command, the precision and the limits that an answer names."""

from __future__ import annotations

import pytest

from halfguard.investigation.answering import answer_good_run, name_failure, name_precision
from halfguard.investigation.passes import Made, Misused, PassResult, ScalerFacts, Target
from halfguard.investigation.proof import Proven
from halfguard.records.autopsy import Culprit
from halfguard.records.script_answer import InFP32, ScriptAnswer


def answered(first: PassResult, audit: PassResult | None = None, *misused: Misused) -> ScriptAnswer:
    """Return the answer for a script without a bad number."""
    return answer_good_run(
        Target(name="train.py"), first, audit, misused, proven=Proven(), log="", shared=()
    )


def test_a_command_as_text_keeps_its_words() -> None:
    target = Target(name="train.py", arguments=("--header", "a b", "--lr", "1"))
    assert str(target) == "train.py --header 'a b' --lr 1"
    assert str(Target(name="a.b", is_module=True)) == "-m a.b"


@pytest.mark.parametrize(
    ("first", "audit", "told"),
    [
        ("", PassResult(ended="steps"), ""),
        ("", PassResult(ended="crashed", error="RuntimeError: sparse"), "RuntimeError: sparse"),
        ("", PassResult(ended="died"), "its process died"),
        ("", PassResult(ended="interrupted"), ""),
        ("KeyError: 'x'", PassResult(ended="crashed", error="KeyError: 'x'"), ""),
    ],
)
def test_an_audit_that_fails_is_told(first: str, audit: PassResult, told: str) -> None:
    answer = answered(PassResult(ended="finished", backward=9, error=first), audit)
    assert any("The audit of a few steps failed" in note for note in answer.notes) is bool(told)
    assert told in " ".join(answer.notes)


@pytest.mark.parametrize(("seconds", "noted"), [(59.0, 0), (61.0, 2)])
def test_a_long_run_is_no_proof_that_it_learns(seconds: float, noted: int) -> None:
    sure = Misused(kind="clipped", sentence="It clips scaled gradients.")
    lost = Misused(kind="lost updates", sentence="Updates round to 0.", unsure=True)
    first = PassResult(ended="finished", backward=9, seconds=seconds)
    answer = answered(first, PassResult(ended="steps", misuse=(sure, lost, lost)))
    assert answer.outcome == "nothing bad"
    assert len(answer.notes) == noted
    if noted:
        assert "ran for 61 s. halfguard compares it with FP32 only" in answer.notes[0]
        assert answer.notes[1] == "Not tested: Updates round to 0."


@pytest.mark.parametrize(
    ("regions", "weights", "seen", "named"),
    [
        ((), "", "", "FP32"),
        (("cpu bfloat16",), "", "bfloat16", "BF16 autocast"),
        (("cpu float16", "cuda float16"), "", "float16", "FP16 autocast"),
        (("cpu float16", "cpu bfloat16"), "", "", "FP16 and BF16 autocast"),
        (("cpu float16",), "float16", "float16", "FP16 weights"),
        ((), "", "float16", "FP32 with some FP16 tensors"),
        ((), "", "float32", "FP32"),
    ],
)
def test_the_precision_that_really_ran(
    regions: tuple[str, ...], weights: str, seen: str, named: str
) -> None:
    first = PassResult(regions=regions, made=Made(half_dtype=weights))
    assert name_precision(first, seen) == named


@pytest.mark.parametrize(
    ("in_fp32", "dtype", "code"),
    [
        ("fine", "float16", "HG601"),
        ("fails", "float16", "HG620"),
        ("unknown", "float16", "HG601"),
        ("unknown", "float32", "HG620"),
    ],
)
def test_half_is_not_blamed_for_what_is_bad_in_fp32(in_fp32: InFP32, dtype: str, code: str) -> None:
    culprit = Culprit("op", "std", "forward", None, "train.py", 1, "", dtype=dtype)
    answer = ScriptAnswer(script="", outcome="non-finite value", culprit=culprit, in_fp32=in_fp32)
    assert name_failure(answer, ()) == code


@pytest.mark.parametrize(("seconds", "noted"), [(59.0, False), (75.0, True)])
def test_a_missing_patch_of_a_long_run_has_a_reason(seconds: float, noted: bool) -> None:
    misused = Misused(kind="clipped", sentence="Gradients are clipped while they are scaled.")
    first = PassResult(ended="finished", backward=9, seconds=seconds, misuse=(misused,))
    answer = answered(first, None, misused)
    assert any("Patches are tested" in note for note in answer.notes) is noted


def test_scales_of_several_scalers_are_not_those_of_one() -> None:
    facts = ScalerFacts(used=True, count=3, skips=20, first=65536, last=16384)
    first = PassResult(ended="finished", backward=25, scaler=facts)
    answer = answered(first)
    assert answer.loss_scale.startswith("3 scalers; the initial loss scale of the first is 65536")
