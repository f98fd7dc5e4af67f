"""The cure that is recommended is the first one with which the script trains on."""

from __future__ import annotations

import pytest

from halfguard.investigation.bad_runs import failure
from halfguard.investigation.good_runs import fault_left, with_audit
from halfguard.investigation.passes import Event, Misused, PassResult
from halfguard.investigation.proof import PROOF, SOON_STEPS, Proven, is_worth_it, prove
from halfguard.records.autopsy import Cure

EVENT = Event(kind="loss", backward=4, step=4, how="the loss")
FIRST = PassResult(seconds=1.0, event=EVENT)


def cure(name: str, *, trial: str = "", diff: bool = True) -> Cure:
    patch = f"--- a/{name}\n+++ b/{name}" if diff else "precision: fp32"
    return Cure(what="operation", sentence=name, trial=trial, patch=patch)


def run_all(*cures: Cure, **ends: PassResult) -> tuple[list[str], Proven]:
    """Prove cures by prepared runs; return the patches that were run, too."""
    ran: list[str] = []

    def run(patch: str) -> PassResult:
        ran.append(patch.rsplit("/", maxsplit=1)[-1])
        return ends[ran[-1]]

    proven = prove(cures, run, lambda result, _: failure(result, EVENT))
    return ran, proven


GOOD = PassResult(ended="steps", backward=54, steps=54)
BAD = PassResult(ended="event", backward=9, steps=9, event=EVENT)
CRASHED = PassResult(ended="crashed", backward=9, steps=9, error="RuntimeError: mat1 and mat2")


def test_cures_are_run_in_order_until_one_is_good() -> None:
    cures = [cure("a", trial="a line in FP32"), cure("b"), cure("c"), cure("d")]
    ran, proven = run_all(*cures, a=BAD, b=CRASHED, c=GOOD)
    assert ran == ["a", "b", "c"]
    assert (proven.cure.sentence, proven.cure.trial) == ("c", PROOF)
    assert [trial.good for trial in proven.trials] == [False, False, True]
    assert "mat1 and mat2" in proven.trials[1].note


def test_how_far_the_patched_script_was_run_is_told() -> None:
    _, proven = run_all(cure("a"), a=GOOD)
    assert proven.trials[0].note == "stopped after 54 steps"
    _, proven = run_all(cure("a"), a=GOOD.model_copy(update={"ended": "finished"}))
    assert proven.trials[0].note == "ended after 54 steps"


def test_what_its_own_run_refutes_is_not_recommended_but_another_cure_that_was_tried() -> None:
    tried = cure("b", trial="this line in FP32")
    _, proven = run_all(cure("a"), tried, a=BAD, b=BAD)
    assert proven.cure is None
    plan = cure("plan", trial="'block' in FP32", diff=False)
    _, proven = run_all(tried, plan, b=BAD)
    assert proven.cure == plan


def test_a_patch_for_which_there_was_no_time_is_not_shown() -> None:
    slow = BAD.model_copy(update={"seconds": 1000.0})
    ran, proven = run_all(cure("a"), cure("b", trial="this line in FP32"), a=slow)
    assert ran == ["a"]
    assert (proven.cure.trial, proven.cure.patch) == ("this line in FP32", "")


def test_a_patch_of_a_config_is_not_run() -> None:
    config = cure("config", trial="the whole step in FP32", diff=False)
    ran, proven = run_all(config)
    assert (ran, proven.cure) == ([], config)


def test_a_script_that_does_not_get_beyond_the_step_is_no_proof() -> None:
    _, proven = run_all(cure("a"), a=PassResult(ended="finished", backward=4, steps=4))
    assert proven.cure is None
    assert proven.trials[0].note == "it did not get past the failing step"


def test_a_late_failure_is_not_run_again() -> None:
    late = EVENT.model_copy(update={"step": SOON_STEPS})
    assert is_worth_it(FIRST, EVENT)
    assert not is_worth_it(FIRST, late)
    assert not is_worth_it(PassResult(seconds=1000.0), EVENT)


def test_a_patch_that_occurs_twice_keeps_its_first_place() -> None:
    ran, _ = run_all(*(cure(name) for name in "abaca"), a=BAD, b=BAD, c=BAD)
    assert ran == ["a", "b", "c"]


def test_a_patch_that_does_not_fit_is_no_trial() -> None:
    proven = prove([cure("a")], lambda _: None, lambda *_: "")
    assert (proven.cure, proven.trials) == (None, ())


def test_an_interrupted_run_is_no_proof_and_ends_the_search_but_one_that_is_late_may_be_one() -> (
    None
):
    interrupted = GOOD.model_copy(update={"ended": "interrupted"})
    tried = cure("a", trial="this line in FP32")
    ran, proven = run_all(tried, cure("b"), a=interrupted, b=GOOD)
    assert ran == ["a"]
    assert (proven.cure, proven.trials) == (tried, ())
    _, proven = run_all(tried, a=GOOD.model_copy(update={"ended": "late"}))
    assert proven.cure.trial.endswith(PROOF)


MISUSED = Misused(kind="no scaler", sentence="no scaler")
CLIPPED = Misused(kind="clipped", sentence="clipped")


@pytest.mark.parametrize(
    ("after", "good"),
    [
        ((), True),
        ((MISUSED,), False),
        ((CLIPPED,), False),  # a new fault
        ((Misused(kind="schedule", sentence="as before"),), True),
    ],
)
def test_a_patch_is_proven_if_its_fault_is_gone_and_no_other_is_new(
    after: tuple[Misused, ...], good: bool
) -> None:
    result = GOOD.model_copy(update={"misuse": after})
    before = (MISUSED, Misused(kind="schedule", sentence="as before"))
    assert (not fault_left(result, MISUSED, before)) is good
    if CLIPPED in after:
        assert fault_left(result, MISUSED, before) == "it has a new fault: clipped"


def test_digits_that_other_lines_lose_are_judged_by_what_is_learnt() -> None:
    digits = Misused(kind="lost digits", sentence="", unsure=True)
    result = GOOD.model_copy(update={"misuse": (digits,)})
    assert not fault_left(result, digits.model_copy(update={"unsure": False}), (digits,))


@pytest.mark.parametrize(
    ("audit", "error"),
    [
        (PassResult(ended="steps", inspected=7, misuse=(CLIPPED,)), ""),
        (PassResult(ended="crashed", error="RuntimeError: sparse", inspected=7), "sparse"),
        (PassResult(ended="late"), "did not finish"),
        (PassResult(ended="died"), "did not finish"),
        (PassResult(ended="finished", inspected=2), "did not finish"),
    ],
)
def test_an_audit_that_fails_is_no_proof(audit: PassResult, error: str) -> None:
    result = with_audit(GOOD, audit, inspected=7)
    assert error in result.error
    assert bool(result.error) is bool(error)
    assert result.misuse == (() if error else (CLIPPED,))


def test_an_audit_that_is_interrupted_ends_the_search() -> None:
    assert with_audit(GOOD, PassResult(ended="interrupted"), 7).ended == "interrupted"


def test_a_machine_that_does_other_things_too_does_not_make_a_script_long() -> None:
    waits = FIRST.model_copy(update={"seconds": 90.0, "busy": 20.0})
    assert is_worth_it(waits, EVENT)
    assert not is_worth_it(waits.model_copy(update={"busy": 80.0}), EVENT)
    assert not is_worth_it(waits.model_copy(update={"seconds": 200.0}), EVENT)  # it sleeps
    assert not is_worth_it(FIRST.model_copy(update={"seconds": 61.0}), EVENT)
