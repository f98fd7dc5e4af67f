"""Run a healthy step again as it was, before it is applied, and compare loss and gradients bit by bit.

A step that differs from two repeats, which agree with each other, was computed wrongly by a machine. If the
repeats differ from each other, an operation does not give the same bits twice, and nothing can be said.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from halfguard.dist.collectives import all_agree, all_gather_object
from halfguard.guard.step_batches import MicroBatch, StepBatches
from halfguard.guard.stepping.stepper import Stepper
from halfguard.numerics.checksum import checksums
from halfguard.step.random_state import preserved_random_state
from halfguard.tracing.audit import restored_gradients

_LossOf = Callable[[MicroBatch, Any], Tensor]


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
