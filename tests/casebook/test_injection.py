"""The faults do harm to loops without protection, and none to halfguard's."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.casebook.loops import plain
from benchmarks.casebook.loops.faults import FAULTS, Fault, LoopParts
from benchmarks.casebook.loops.injection import (
    FaultOutcome,
    MakeLoop,
    assert_survives_faults,
    inject_faults,
)

from halfguard.errors import UsageError

HARM = {fault.name: fault for fault in FAULTS}


def problems(make: MakeLoop, *names: str) -> dict[str, list[str]]:
    found = inject_faults(make, [HARM[name] for name in names])
    return {outcome.fault.name: outcome.problems for outcome in found}


def test_there_are_faults_in_every_phase() -> None:
    assert len(FAULTS) >= 10
    assert len(HARM) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_guard_loses_nothing(fault: object) -> None:
    assert_survives_faults(plain.Guarded, [fault])  # type: ignore[list-item]


def test_a_bare_scaler_poisons_batchnorm_and_lowers_the_scale() -> None:
    found = problems(plain.Scaled, "nan_batch", "scaled_overflow", "raise_in_optimizer")
    assert found == {
        "nan_batch": ["buffers poisoned", "scheduler 1 ahead", "scale lowered"],
        "scaled_overflow": ["1 batches lost", "scheduler 1 ahead"],
        "raise_in_optimizer": ["stale gradients"],
    }


def test_a_pasted_check_does_not_see_bad_gradients() -> None:
    found = problems(plain.Pasted, "nan_loss", "inf_gradient")
    assert found == {"nan_loss": [], "inf_gradient": ["scheduler 1 ahead", "scale lowered"]}


def test_a_running_window_keeps_the_nan() -> None:
    (found,) = inject_faults(plain.SkippingOptimizer, [HARM["nan_loss"]])
    assert found.weights_poisoned
    assert found.moments_poisoned
    assert found.refused_later == 7


def test_a_failed_assertion_lists_every_harm() -> None:
    with pytest.raises(AssertionError, match=r"2 faults did harm:\n  nan_batch: buffers poisoned"):
        assert_survives_faults(plain.Scaled, [HARM["nan_batch"], HARM["inf_gradient"]])


def test_an_error_before_the_fault_is_the_loops_own() -> None:
    class Broken(plain.Scaled):
        def train(self, batches: object) -> None:
            raise KeyError("batches")

    with pytest.raises(KeyError, match="batches"):
        inject_faults(Broken, [HARM["nan_batch"]])


def test_an_error_after_the_fault_is_told() -> None:
    class Gives(plain.Scaled):
        def train(self, batches: Any) -> None:
            super().train(batches)
            raise KeyError("no more")

    (found,) = inject_faults(Gives, [HARM["buffers_only"]])
    assert isinstance(found, FaultOutcome)
    assert "ended by KeyError: 'no more'" in found.problems


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_loop_that_begins_with_another_scale_is_refused() -> None:
    class Default(plain.Scaled):
        def __init__(self, parts: LoopParts) -> None:
            parts.initial_scale = 2.0**24
            super().__init__(parts)

    with pytest.raises(UsageError, match="healthy steps before the fault"):
        inject_faults(Default, [HARM["nan_batch"]])


def test_a_fault_of_ones_own_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError, match="not one of") as caught:
        inject_faults(plain.Scaled, [Fault("mine", "x")])
    assert "nan_batch" in caught.value.cure
