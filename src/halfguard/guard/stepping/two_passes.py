"""Run a step twice again as it was, and compare.

A bad step, before it is repeated in FP32: the state that a step reaches is searched for, and a search can
miss something. Two passes that begin with the same state read the same values; if they do not, the repeat
would not be the same step either. If they read the same and are finite, although the step was not, the
machine was at fault and not the numbers.

A healthy step, before it is applied (``verify``): loss and gradients are compared bit by bit. A step that
differs from two repeats, which agree with each other, was computed wrongly by a machine. If the repeats
differ from each other, an operation does not give the same bits twice, and nothing can be said.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halfguard.dist.collectives import all_agree, all_gather_object, run_on_all
from halfguard.dist.wrapping import sharded_modules, unreduced_gradients
from halfguard.guard.step_batches import MicroBatch, StepBatches
from halfguard.guard.stepping.stepper import Stepper
from halfguard.numerics.checksum import checksums
from halfguard.numerics.finite import all_finite
from halfguard.precision.modes import eagerly, has_compiled
from halfguard.step.random_state import (
    capture_random_state,
    generator_state,
    preserved_random_state,
    restore_random_state,
    same_random_state,
    set_generator_state,
)
from halfguard.tracing.audit import restored_gradients
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
        difference and f"a value that {difference} reads",
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


def find_wrong_ranks(
    stepper: Stepper, batches: StepBatches, loss_of: _LossOf
) -> tuple[int, ...] | None:
    """Return the ranks on which a step differs from its repeats; None if the repeats differ themselves.

    Gradients, state and random generators are as before. Every rank must call this; what ranks add is added
    again, so that one wrong gradient differs on all of them. Then the ranks with a wrong loss are returned.
    """
    step = _sums(stepper, batches.loss)
    repeat = _repeated(stepper, batches, loss_of)
    same = torch.equal(step, repeat)
    if all_agree(same, stepper.device):
        return ()
    if not all_agree(torch.equal(repeat, _repeated(stepper, batches, loss_of)), stepper.device):
        return None
    wrong: list[tuple[bool, bool]] = all_gather_object((bool(step[0] != repeat[0]), not same))
    losses = tuple(rank for rank, (loss, _) in enumerate(wrong) if loss)
    return losses or tuple(rank for rank, (_, any_part) in enumerate(wrong) if any_part)


def _sums(stepper: Stepper, loss: Tensor | None) -> Tensor:
    assert loss is not None  # noqa: S101 - a complete step has one
    return checksums([loss, *stepper.local_gradients()])


def _repeated(stepper: Stepper, batches: StepBatches, loss_of: _LossOf) -> Tensor:
    """Return the checksums of another run of the step, which leaves no trace."""
    with ExitStack() as stack:
        stack.enter_context(preserved_random_state())
        stack.enter_context(stepper.step_state.preserved())
        for micro in batches.micro_batches:
            stack.enter_context(micro.as_given())
        stack.enter_context(restored_gradients(stepper.model))
        return _sums(stepper, stepper.run_again(batches, loss_of))
