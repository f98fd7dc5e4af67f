"""The cure that is recommended is the first one with which the script trains on."""

from __future__ import annotations

import pytest

from halfguard.investigation.curing import (
    PROOF,
    SOON_STEPS,
    is_worth_it,
    prove,
    prove_silence,
    with_audit,
)
from halfguard.investigation.passes import Event, Misused, MisuseKind, PassResult
from halfguard.records.autopsy import Cure

EVENT = Event(kind="loss", backward=4, step=4, how="the loss")
FIRST = PassResult(seconds=1.0, event=EVENT)


def cure(name: str, *, trial: str = "", diff: bool = True) -> Cure:
    patch = f"--- a/{name}\n+++ b/{name}" if diff else "precision: fp32"
    return Cure(what="operation", sentence=name, trial=trial, patch=patch)


def runs(**ends: PassResult) -> tuple[list[str], object]:
    ran: list[str] = []

    def run(patch: str, steps: int, seconds: float) -> PassResult:
        assert steps > EVENT.step
        assert seconds > 0
        ran.append(patch.rsplit("/", maxsplit=1)[-1])
        return ends[ran[-1]]

    return ran, run


GOOD = PassResult(ended="steps", backward=54, steps=54)
BAD = PassResult(ended="event", backward=9, steps=9, event=EVENT)
CRASHED = PassResult(ended="crashed", backward=9, steps=9, error="RuntimeError: mat1 and mat2")


def test_cures_are_run_in_order_until_one_is_good() -> None:
    ran, run = runs(a=BAD, b=CRASHED, c=GOOD)
    cures = [cure("a", trial="a line in FP32"), cure("b"), cure("c"), cure("d")]
    proven = prove(cures, FIRST, EVENT, run)  # type: ignore[arg-type]
    assert ran == ["a", "b", "c"]
    assert (proven.cure.sentence, proven.cure.trial) == ("c", PROOF)
    assert [trial.good for trial in proven.trials] == [False, False, True]
    assert "mat1 and mat2" in proven.trials[1].note


def test_without_a_proof_a_cure_that_was_tried_is_recommended_and_no_other() -> None:
    _, run = runs(a=BAD, b=BAD)
    tried = cure("b", trial="this line in FP32")
    proven = prove([cure("a"), tried], FIRST, EVENT, run)  # type: ignore[arg-type]
    assert proven.cure == tried.model_copy(update={"patch": ""})  # which was run in vain
    assert prove([cure("a")], FIRST, EVENT, run).cure is None  # type: ignore[arg-type]


def test_a_patch_of_a_config_is_not_run() -> None:
    ran, run = runs()
    config = cure("config", trial="the whole step in fp32", diff=False)
    assert prove([config], FIRST, EVENT, run).cure == config  # type: ignore[arg-type]
    assert not ran


def test_a_script_that_does_not_get_beyond_the_step_is_no_proof() -> None:
    _, run = runs(a=PassResult(ended="finished", backward=4, steps=4))
    assert prove([cure("a")], FIRST, EVENT, run).cure is None  # type: ignore[arg-type]


def test_a_late_failure_is_not_run_again() -> None:
    late = EVENT.model_copy(update={"step": SOON_STEPS})
    assert is_worth_it(FIRST, EVENT)
    assert not is_worth_it(FIRST, late)
    assert not is_worth_it(PassResult(seconds=1000.0), EVENT)


def test_a_patch_that_occurs_twice_keeps_its_first_place() -> None:
    ran, run = runs(a=BAD, b=BAD, c=BAD)
    prove([cure(name) for name in "abaca"], FIRST, EVENT, run)  # type: ignore[arg-type]
    assert ran == ["a", "b", "c"]


def test_after_many_skipped_steps_the_run_goes_beyond_the_backward_pass_that_failed() -> None:
    skipped = EVENT.model_copy(update={"backward": 80, "step": 0})
    asked: list[int] = []

    def run(_patch: str, steps: int, _seconds: float) -> PassResult:
        asked.append(steps)
        return PassResult(ended="steps", backward=steps, steps=steps)

    assert prove([cure("a")], FIRST, skipped, run).cure is not None
    assert asked == [130]


def test_a_patch_that_does_not_fit_is_no_trial() -> None:
    proven = prove([cure("a")], FIRST, EVENT, lambda *_: None)
    assert (proven.cure, proven.trials) == (None, ())


def test_an_interrupted_run_is_no_proof_and_ends_the_search_but_one_that_is_late_may_be_one() -> (
    None
):
    interrupted = GOOD.model_copy(update={"ended": "interrupted"})
    ran, run = runs(a=interrupted, b=GOOD)
    tried = cure("a", trial="this line in FP32")
    proven = prove([tried, cure("b")], FIRST, EVENT, run)  # type: ignore[arg-type]
    assert ran == ["a"]
    assert (proven.cure, proven.trials) == (tried, ())
    _, run = runs(a=GOOD.model_copy(update={"ended": "late"}))
    proven = prove([tried], FIRST, EVENT, run)  # type: ignore[arg-type]
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
    first = PassResult(ended="finished", backward=54, steps=54, seconds=1.0)
    result = GOOD.model_copy(update={"misuse": after})
    before: tuple[MisuseKind, ...] = ("no scaler", "schedule")
    proven = prove_silence([(cure("a"), MISUSED)], before, first, lambda *_: result)
    assert (proven.cure is not None) is good
    assert proven.trials[0].good is good
    if CLIPPED in after:
        assert proven.trials[0].note == "it has a new fault: clipped"


@pytest.mark.parametrize(
    ("audit", "error"),
    [
        (PassResult(ended="steps", inspected=7, misuse=(CLIPPED,)), ""),
        (PassResult(ended="crashed", error="RuntimeError: sparse", inspected=7), "sparse"),
        (PassResult(ended="late"), "did not get to its end"),
        (PassResult(ended="died"), "did not get to its end"),
        (PassResult(ended="finished", inspected=2), "did not get to its end"),
    ],
)
def test_an_audit_that_fails_is_no_proof(audit: PassResult, error: str) -> None:
    result = with_audit(GOOD, audit, inspected=7)
    assert error in result.error
    assert bool(result.error) is bool(error)
    assert result.misuse == (() if error else (CLIPPED,))


def test_an_audit_that_is_interrupted_ends_the_search() -> None:
    assert with_audit(GOOD, PassResult(ended="interrupted"), 7).ended == "interrupted"
