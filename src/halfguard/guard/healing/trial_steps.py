"""Run a bad step once more, to look at it: nothing of the run changes.

Every rank runs the same passes, forward and backward, whatever it finds, because modules may exchange
tensors in either. DDP's gradients stay on their rank; FSDP2 reduces them as ever. Compiled code runs eagerly,
so that no island on trial is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from halfguard.dist.wrapping import disable_fsdp_mixed_precision, unreduced_gradients, unwrap_model
from halfguard.guard.step_batches import MicroBatch, StepBatches, loss_in_fp32
from halfguard.guard.stepping.stepper import Stepper
from halfguard.precision.modes import autocast, autocast_dtype, eagerly, without_autocast
from halfguard.precision.upcast import half_tensors_in_fp32
from halfguard.step.random_state import preserved_random_state
from halfguard.tracing.audit import restored_gradients
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.runner import Runner, do_nothing


class TrialSteps(Runner):
    """Repeats the batches of a step in half or in FP32; ``around`` is entered for each repetition."""

    def __init__(
        self,
        stepper: Stepper,
        batches: StepBatches,
        lines: LineIslands,
        around: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._stepper, self._batches = stepper, batches
        self._lines, self._around = lines, around
        self.model = unwrap_model(stepper.model)
        self.half = autocast_dtype(stepper.config.precision) or torch.float16

    def in_half(self, scale: float) -> Callable[..., Tensor]:
        """Return a function that runs forward and scaled backward passes in half; it returns the loss."""
        config, kind = self._stepper.config, self._stepper.device.type

        def run(collect: Callable[[], None] = do_nothing) -> Tensor:
            losses = []
            for micro in self._batches.micro_batches:
                micro.restore()
                with self._lines.active():
                    with autocast(config.precision, kind):
                        loss = self._loss(micro, micro.batch)
                    (loss * scale).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
            collect()
            return sum(losses[1:], losses[0])

        return run

    def in_fp32(self) -> Callable[..., Tensor]:
        """Return the same function for FP32, without a loss scale."""

        def run(collect: Callable[[], None] = do_nothing) -> Tensor:
            with ExitStack() as stack:
                stack.callback(disable_fsdp_mixed_precision(self._stepper.model))
                stack.enter_context(half_tensors_in_fp32(self.model))
                stack.enter_context(self._stepper.step_state.in_fp32())
                stack.enter_context(without_autocast(self._stepper.device.type))
                losses = []
                for micro in self._batches.micro_batches:
                    micro.restore()
                    loss = loss_in_fp32(micro, partial(self._loss, micro))
                    loss.backward()  # type: ignore[no-untyped-call]
                    losses.append(loss.detach())
                collect()
            return sum(losses[1:], losses[0])

        return run

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore after the block what a step changes: gradients, random states, and all that it reaches."""
        with ExitStack() as stack:
            stack.enter_context(restored_gradients(self.model))
            stack.enter_context(self._stepper.step_state.preserved())
            stack.enter_context(preserved_random_state())
            stack.enter_context(unreduced_gradients(self._stepper.model))
            stack.enter_context(eagerly())
            stack.enter_context(self._around())
            for micro in self._batches.micro_batches:
                stack.enter_context(micro.as_given())
            yield

    def _loss(self, micro: MicroBatch, batch: Any) -> Tensor:
        loss = micro.loss_of(self._stepper.model, batch)
        count = self._stepper.config.accumulate
        return loss if count == 1 else loss / count
