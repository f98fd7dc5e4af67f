"""Run a bad step twice as it was, before it is repeated in FP32, and compare what the two passes read.

The state that a step reaches is searched for, and a search can miss something. Two passes that begin with
the same state read the same values; if they do not, the repeat would not be the same step either. If they
read the same and are finite, although the step was not, the machine was at fault and not the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from halfguard.dist.collectives import all_agree, run_on_all
from halfguard.dist.wrapping import sharded_modules, unreduced_gradients
from halfguard.guard.step_batches import MicroBatch, StepBatches
from halfguard.guard.stepping.stepper import Stepper
from halfguard.numerics.finite import all_finite
from halfguard.precision.modes import eagerly, has_compiled
from halfguard.step.random_state import (
    capture_random_state,
    generator_state,
    restore_random_state,
    same_random_state,
    set_generator_state,
)
from halfguard.tracing.values_read import ValuesRead

_LossOf = Callable[[MicroBatch, Any], Tensor]


class AsItWas(NamedTuple):
    """Two passes of a refused step on this rank, in its own precision and with its loss scale."""

    difference: str = ""  # what they read differently
    is_finite: bool = False  # losses and gradients of both


def run_as_it_was(
    stepper: Stepper, batches: StepBatches, loss_of: _LossOf, *, whole: bool
) -> AsItWas:
    """Run a refused step twice; return what the passes read differently, and whether they are finite.

    If the step is ``whole``, nothing ran since its backward pass, and the generators must be in their present
    state after a pass, unless compiled code has drawn other numbers. A pass that raises shows nothing: the
    repeat may still succeed. Every rank must call this; gradients are cleared.
    """
    own = [generator for generator, _ in batches.micro_batches[0].own_generators]

    def generators() -> tuple[Any, list[Any]]:
        return capture_random_state(), [generator_state(generator) for generator in own]

    def run() -> tuple[ValuesRead, bool, Any]:
        return *_run(stepper, batches, loss_of), generators()

    after = generators()
    try:
        with stepper.step_state.preserved():  # also what a repeat would not put back
            both, errors = run_on_all(lambda: (run(), run()), stepper.device)
            if errors:
                return AsItWas()
            (first, one, now), (second, two, _) = both
            difference = first.first_difference(second)
            # The first pass may have filled a cache. All ranks run the third one, or none: FSDP2 gathers.
            if not all_agree(not difference, stepper.device):
                third, errors = run_on_all(run, stepper.device)
                if errors:
                    return AsItWas()
                difference = second.first_difference(third[0])
    finally:
        restore_random_state(after[0])
        for generator, state in zip(own, after[1], strict=True):
            set_generator_state(generator, state)
    # Compiled code draws other numbers than eager code.
    checks_generators = whole and not has_compiled()
    if not difference and checks_generators and not same_random_state(now, after):
        difference = "a random number generator whose state differs when the step is repeated"
        return AsItWas(difference)
    # Compiled code may compute other numbers than eager code.
    return AsItWas(
        difference and f"what {difference} reads",
        one and two and not difference and not has_compiled(),
    )


def _run(stepper: Stepper, batches: StepBatches, loss_of: _LossOf) -> tuple[ValuesRead, bool]:
    """Return what a pass reads, and whether its loss and gradients are finite."""
    values = ValuesRead(weights=not sharded_modules(stepper.model))

    def reading(micro: MicroBatch, batch: Any) -> Tensor:
        with values:
            return loss_of(micro, batch)

    with stepper.leaving_no_trace(), unreduced_gradients(stepper.model), eagerly():
        loss = stepper.run_again(batches, reading, holds_back=False)
        is_finite = all_finite([loss, *stepper.local_gradients()])
    return values, is_finite
