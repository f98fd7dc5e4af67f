"""One update on the device: unscale, measure, decide, clip, step, update the scale, restore or keep buffers.

The same operations run for a step that passes and for one that is refused, and nothing waits for the answer
unless the caller already has it. Order and operations are those of a careful loop, so that a healthy run is
bitwise the run without the guard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from halfguard.dist.collectives import all_agree, run_on_all
from halfguard.dist.layout import Layout, find_layout
from halfguard.dist.wrapping import (
    GradientSync,
    disable_fsdp_mixed_precision,
    is_dtensor,
    is_replicated_elsewhere,
    reduce_partial,
    unreduced_gradients,
    unwrap_model,
)
from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.consensus import Consensus, Gradients, measure
from halfguard.guard.desync import Replicas
from halfguard.guard.step_batches import (
    MicroBatch,
    StepBatches,
    copy_containers,
    loss_in_fp32,
    trainable_loss,
)
from halfguard.guard.stepping.buffers import Buffers
from halfguard.guard.stepping.gate import Gate
from halfguard.guard.stepping.scaler import CEILING, GradScaler
from halfguard.guard.stepping.step_state import StepState
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import without_autocast
from halfguard.precision.upcast import half_tensors_in_fp32
from halfguard.precision_names import Precision
from halfguard.step.holders import Saved
from halfguard.step.parameters import parameters_of

logger = logging.getLogger("halfguard")

Saving = Callable[[], AbstractContextManager[object]]  # how autograd saves tensors


class Stepper:
    """Owns everything that an update changes: parameters by name, optimizers, scaler, buffers."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        config: GuardConfig,
        *,
        hosted: bool = False,
    ) -> None:
        self.model = model
        self.optimizers = optimizers
        self.config = config
        # Changed by steps and checkpoints. A host may train parameters that are in no module.
        self._first_weight = _first_weight(model, optimizers if hosted else ())
        self.device = self._first_weight.device
        self.scaler = _scaler(config, self.device)
        self.buffers = Buffers(model)
        self.step_state = StepState(model, self.buffers, optimizers)
        self.on_unrepeatable: Callable[[list[str]], object] | None = None
        # A backward pass has begun, or a forward pass after others that held their gradients back.
        self._sync_begun = False
        self._ran_out = False  # of memory, in the last repeat
        self._saves_on_host = False  # in repeats, because one ran out of memory
        self._backward_checked = False  # for an optimizer that steps inside it
        self._wrapping_checked = False
        # A loop's forward pass began before the guard knew of it, as a host's second one may.
        self._keeps_at_end = hosted
        self._hosted = hosted  # a framework runs backward, clips, and clears gradients
        self.clip_repeated: Callable[[Optimizer], object] | None = None  # as the host clips
        self.around_step: Callable[[Optimizer], AbstractContextManager[Any]] | None = None
        self.compares_ranks: Callable[[], bool] = lambda: False  # in the sum of this step
        self.has_alarm: Callable[[], bool] | None = None  # told to the other ranks with each step
        self._version_at_scale = 0
        self._scales = Precision(config.precision).needs_loss_scale  # the scaler has scaled so far
        self.half_applied = False  # an exception left weights or the scale between two steps
        self.gate = Gate()
        self._answers: dict[tuple[torch.device, bool], Tensor] = {}  # made once: 0.0 and 1.0
        self._wrappers = GradientSync(model)
        self._stepped: set[int] = set()
        self._precision = config.precision  # of FSDP2's mixed-precision policy
        self._in_fp32: ExitStack | None = None  # undoes what FP32 as a remedy changed
        self.further_models: list[nn.Module] = []  # that a loss reads besides: a frozen reference
        self._expected = config.accumulate  # backward passes per step
        self.replicas = Replicas(model, optimizers, self._scale)
        self._layout: Layout | None = None
        self._parameter_ids: list[int] = []  # of all optimizers, in order
        self.refresh_parameters()
        self.keep_state()

    @property
    def fused(self) -> bool:
        """True if every optimizer can skip a step on the device, so that the host need not wait."""
        return all(getattr(o, "_step_supports_amp_scaling", False) for o in self.optimizers)

    @property
    def single_rank(self) -> bool:
        """True if there are no other ranks."""
        return self._consensus.single_rank

    def local_gradients(self) -> list[Tensor]:
        """Return this rank's parts of all gradients."""
        known = chain(self.model.parameters(), *map(list.__iter__, self._parameter_lists()))
        grads = {id(p): p.grad for p in known if p.grad is not None}
        return [local_tensor(grad) for grad in grads.values()]

    @property
    def adds_in_half(self) -> bool:
        """True if DDP adds half gradients of ranks, so that a sum may overflow that no rank sees."""
        weights = self.model.parameters()
        return self._wrappers.replicates and any(w.dtype == torch.float16 for w in weights)

    @property
    def holds_gradients(self) -> bool:
        """True if gradients wait where no optimizer sees them, to be reduced with later ones."""
        return self._wrappers.holds_gradients

    @property
    def has_reduced(self) -> bool:
        """True if FSDP2 has reduced all gradients that there are."""
        return self._wrappers.shards and not self.holds_gradients

    def micro_batch(self, batches: StepBatches) -> AbstractContextManager[Any]:
        """Return the context for one micro-batch: ranks reduce gradients with the last one only."""
        if self.config.accumulate == 1 or self.single_rank:
            return nullcontext()
        batches.gradients_held_back = held_back = self._holds_back(
            len(batches.micro_batches), self.config.accumulate
        )
        self._sync_begun = not held_back
        return self._wrappers.defer_gradient_sync(held_back)

    def _holds_back(self, index: int, count: int) -> bool:
        # Master weights collect gradients after each micro-batch, and need them averaged.
        collected = any(isinstance(optimizer, MasterWeights) for optimizer in self.optimizers)
        return index + 1 < count and not collected

    def reconfigure(self, config: GuardConfig) -> None:
        """Continue with another configuration; FP32 as a remedy changes FSDP2's policy as well."""
        wide = config.precision == "fp32" != self._precision
        if wide and self._in_fp32 is None:
            self._in_fp32 = ExitStack()
            self._disable_fsdp_mixed_precision(self._in_fp32)
            self._in_fp32.enter_context(half_tensors_in_fp32(self.model, trained=False))
        elif not wide and self._in_fp32 is not None:
            self._in_fp32.close()
            self._in_fp32 = None
        norm_types = [c.clip.norm_type if c.clip else 2.0 for c in (self.config, config)]
        self.config = config
        if norm_types[0] != norm_types[1]:
            self._parameter_ids = []
            self.refresh_parameters()  # how ranks add up their parts depends on it
        self.scaler.set_growth_interval(config.scale.growth_interval)
        if not Precision(config.precision).needs_loss_scale:
            return
        if not self._scales:
            self._scales = True
            self.scaler.restart(config.scale.init)
        self.scaler.set_growth_factor(config.scale.growth_factor)
        self.scaler.set_backoff_factor(config.scale.backoff_factor)
        self.scaler.set_bounds(config.scale.floor, _ceiling(config))

    def keep_state(self) -> None:
        """Save the state that a forward pass changes: buffers, and tensors that modules hold."""
        self.step_state.keep()
        self.buffers.keep()
        self._weights_version = self._first_weight._version

    def begin(self, *, late: bool) -> None:
        """Save the state before a step; ``late`` if its forward pass has already run.

        Then what was saved at the end of the last step is the state before this one.
        """
        self._check_wrapping()
        self._keeps_at_end |= late
        if not self._hosted:
            self.scaler.forget_unstepped()
        if not late or self.weights_replaced:
            self.keep_state()

    def begin_again(self, *, first: bool) -> None:
        """Prepare for another forward pass after one without a backward pass, which may be abandoned.

        A loop may leave a batch whose loss is not finite; what that batch did to the statistics is undone.
        """
        if first and self.weights_replaced:
            self.keep_state()
        else:
            self.buffers.restore_poisoned()

    @property
    def weights_replaced(self) -> bool:
        """True if weights were loaded since the state was saved: the buffers belong to them."""
        return self._weights_version != self._first_weight._version

    def backward(
        self, part: Tensor, micro: MicroBatch, batches: StepBatches, *, retain_graph: bool = False
    ) -> None:
        """Run the scaled backward pass of a micro-batch, and add its part of the loss to ``batches``."""
        scaled = self.scale_loss(part, micro, batches)
        self._run_backward(scaled, retain_graph=retain_graph)
        self.raise_if_stepped_in_backward()
        if self.config.accumulate > 1:
            for optimizer in self.optimizers:
                if isinstance(optimizer, MasterWeights):
                    optimizer.collect_gradients()  # micro-batches are summed in FP32

    def scale_loss(self, part: Tensor, micro: MicroBatch, batches: StepBatches) -> Tensor:
        """Return the scaled loss of a micro-batch, and add the micro-batch to ``batches``.

        For the last micro-batch, the sum of the loss over ranks is started before its backward pass.
        """
        scaled: Tensor = self.scaler.scale(part)
        batches.add(self.scaler.last_loss, micro)
        if len(batches.micro_batches) == self._expected:
            self._announce(batches)
        self._version_at_scale = self._first_weight._version
        return scaled

    def raise_if_stepped_in_backward(self) -> None:
        """Raise at the first step if the backward pass changed weights: nobody could refuse that."""
        if self._backward_checked:
            return
        if self._first_weight._version != self._version_at_scale:
            self.half_applied = True
            raise UsageError(
                "The backward pass changed the weights: an optimizer steps in a hook, before the guard can "
                "check whether the gradients are finite.",
                cure="Remove these hooks (register_post_accumulate_grad_hook, _apply_optimizer_in_backward), "
                "and pass the guard an optimizer that steps once.",
            )
        self._backward_checked = True

    def examine(
        self, optimizers: Sequence[Optimizer], batches: StepBatches
    ) -> tuple[Tensor, Gradients]:
        """Unscale and measure; return the row of the step and its gradients."""
        self._reduce_partial(optimizers)
        next_scale = None
        if any(id(optimizer) in self._stepped for optimizer in optimizers):
            # A second step before the others had one, as a GAN's critic may have.
            next_scale = self.scaler.finish_round(open_losses=len(batches.micro_batches))
            self._stepped.clear()
        for optimizer in optimizers:
            if self._hosted or not self.scaler.is_unscaled(optimizer):  # by the loop, to edit them
                self.scaler.unscale_(optimizer)
        scale = self.scaler._get_scale_async()
        if scale is not None and next_scale is not None:
            used, scale = scale, scale.clone()
            used.copy_(next_scale)
        gradients = self._measure(optimizers)
        found = [self.scaler.found_inf(optimizer) for optimizer in optimizers]
        overflow = (
            found[0] if len(found) == 1 else torch.stack([f.to(found[0]) for f in found]).amax()
        )
        if batches.loss is None or scale is None:
            raise UsageError("update() was called without a backward pass since the last update().")
        if not self._consensus.has_sum_of(batches.loss):
            self._announce(batches)
        self._expected = len(batches.micro_batches)
        names = self.step_state.conclude(batches)
        if names and self.on_unrepeatable is not None:
            self.on_unrepeatable(names)
        seen = self._consensus.agree(batches.loss, gradients, overflow)
        if not self._consensus.single_rank:
            self.scaler.note_agreed_loss(seen.loss)
        statistics = self.buffers.sum_of_statistics()
        row = self.gate.row(seen.loss, seen.norm, seen.fault, scale, statistics, seen.alarms)
        return row, Gradients(gradients.names, gradients.norms, seen.norm, seen.overflow)

    def apply(
        self,
        optimizers: Sequence[Optimizer],
        gradients: Gradients,
        refused: Tensor | bool,
        *,
        hold_scale: bool = False,
        undo: bool = True,
    ) -> None:
        """Clip and step unless refused; update the scale; put back what a refused step changed if ``undo``.

        ``refused`` is a tensor as long as only the device knows. With ``hold_scale``, the scale waits for
        ``release_scale``: a retry shows whether it is the cause.
        """
        known = refused if isinstance(refused, bool) else None
        if not known:
            self._clip(optimizers, gradients)
        refusal = self._as_float(refused, gradients.total.device)
        changed = False
        try:
            for optimizer in optimizers:
                self.scaler.override_found_inf(
                    optimizer, refusal, overflow=gradients.overflow, known=known
                )
                self._step(optimizer, partial(self.scaler.step, optimizer))
                changed = not known
                self._stepped.add(id(optimizer))
            if len(self._stepped) == len(self.optimizers) and not hold_scale:
                self._finish_update()
            if known:
                if undo:
                    self._restore()
            elif isinstance(refused, Tensor):
                if self.step_state.needs_host and refused:
                    self.step_state.restore()
                self.buffers.restore_where(refused)
            elif self._keeps_at_end:
                self.buffers.restore_where(refusal != 0)
            self._end()
        except BaseException:
            self.half_applied |= changed
            raise

    def _as_float(self, refused: Tensor | bool, device: torch.device) -> Tensor:
        if isinstance(refused, Tensor):
            return refused.to(torch.float32)
        if (device, refused) not in self._answers:
            answer = torch.full((), float(refused), dtype=torch.float32, device=device)
            self._answers[device, refused] = answer
        return self._answers[device, refused]

    def repeat(
        self, batches: StepBatches, save_on_host: Saving
    ) -> tuple[tuple[Tensor, Gradients] | None, list[str]]:
        """Run the whole step again in FP32: same batches, random state and buffers, no loss scale.

        Return its row and gradients, or None and the errors of all ranks if it raised on any of them. If one
        ran out of memory, all repeat it once more inside ``save_on_host``.
        """
        on_host = self._saves_on_host or self.config.skip.retry_memory == "half"
        parts, errors = self._repeat_on_all(batches, save_on_host if on_host else nullcontext)
        if errors and not on_host and not all_agree(not self._ran_out, self.device):
            self._undo_passes()
            self.clear()
            parts, errors = self._repeat_on_all(batches, save_on_host)
            if not errors:
                self._saves_on_host = True
                logger.warning(
                    "A step ran out of memory when it was repeated in FP32. This repeat and all "
                    "later ones keep the tensors that autograd saves in host memory. This is "
                    "reported only once. To do this from the beginning, set skip: "
                    "{retry_memory: half}."
                )
        if parts is None or errors:
            return None, errors
        self._reduce_partial(self.optimizers)
        gradients = self._measure(self.optimizers)
        overflow = 1 - gradients.norms.isfinite().all().to(torch.float32)
        seen = self._consensus.agree(sum(parts[1:], parts[0]), gradients, overflow, repeated=True)
        scale, statistics = torch.ones_like(overflow), self.buffers.sum_of_statistics()
        row = self.gate.row(seen.loss, seen.norm, seen.overflow, scale, statistics)
        return (row, Gradients(gradients.names, gradients.norms, seen.norm)), []

    def _repeat_on_all(
        self, batches: StepBatches, saving: Saving
    ) -> tuple[list[Tensor] | None, list[str]]:
        """Run the passes of a repeat; return the parts of the loss, and the errors of all ranks.

        Ranks whose gradients DDP averages run it apart first: one that raised alone would leave the others
        waiting.
        """
        self._ran_out = False
        if self._wrappers.replicates and not self.single_rank:
            _, errors = run_on_all(partial(self._rehearse, batches, saving), self.device)
            if errors:
                return None, errors
        parts, errors = run_on_all(partial(self._repeat_all, batches, saving), self.device)
        self._sync_begun |= bool(errors)  # on all ranks alike: they begin anew together
        return parts, errors

    def _rehearse(self, batches: StepBatches, saving: Saving) -> None:
        """Run the passes of a repeat on this rank alone."""
        with self.leaving_no_trace(), unreduced_gradients(self.model):
            self._repeat_all(batches, saving)

    @contextmanager
    def leaving_no_trace(self) -> Iterator[None]:
        """Put back after passes of this rank alone what they changed, and clear their gradients."""
        try:
            yield
        finally:
            self._restore()
            self.clear()
            self._sync_begun = False

    def _disable_fsdp_mixed_precision(self, stack: ExitStack) -> None:
        for model in (self.model, *self.further_models):
            stack.callback(disable_fsdp_mixed_precision(model))

    def _repeat_all(self, batches: StepBatches, saving: Saving) -> list[Tensor]:
        narrow_again = ExitStack()
        try:
            self._disable_fsdp_mixed_precision(narrow_again)
            with (
                half_tensors_in_fp32(self.model, trained=False),
                self.step_state.in_fp32(),
                self.scaler.repeating(),
                saving(),
            ):
                count = len(batches.micro_batches)
                return [
                    self._repeat(
                        micro, self._holds_back(index, count) and not batches.reduced_each, count
                    )
                    for index, micro in enumerate(batches.micro_batches)
                ]
        except torch.OutOfMemoryError:
            self._ran_out = True
            raise
        finally:
            narrow_again.close()

    def _repeat(self, micro: MicroBatch, held_back: bool, count: int) -> Tensor:
        if micro.loss_fn is None or micro.rng is None:
            raise UsageError("Only a step of guard.step(loss_fn, batch) can be repeated.")
        micro.restore()
        self._sync_begun = count > 1 and not held_back
        syncing = self._wrappers.defer_gradient_sync(held_back)
        # The backward pass too: checkpointing computes its parts again there.
        with syncing, without_autocast(self.device.type):
            loss_fn = partial(micro.loss_fn, self.model)
            part = loss_in_fp32(micro, lambda batch: trainable_loss(loss_fn(batch)))
            part = part if self.config.accumulate == 1 else part / self.config.accumulate
            self._run_backward(part)
        return part.detach()

    def run_again(
        self,
        batches: StepBatches,
        loss_of: Callable[[MicroBatch, Any], Tensor],
        *,
        holds_back: bool = True,
    ) -> Tensor:
        """Run the passes of a step from its beginning, in its own precision; return its loss.

        Without ``holds_back``, FSDP2 reduces the gradients of each micro-batch, so that none is left behind
        if a pass raises.
        """
        self._restore()
        count, losses, scale = len(batches.micro_batches), [], self.scaler._get_scale_async()
        for index, micro in enumerate(batches.micro_batches):
            micro.restore()
            held_back = holds_back and self._holds_back(index, count)
            with self._wrappers.defer_gradient_sync(held_back):
                loss = loss_of(micro, copy_containers(micro.batch))
                part = loss if self.config.accumulate == 1 else loss / self.config.accumulate
                losses.append(part.detach())
                self._run_backward(part if scale is None else part * scale)
        return sum(losses[1:], losses[0])

    def _run_backward(self, loss: Any, *, retain_graph: bool = False) -> None:
        self._sync_begun = True
        loss.backward(retain_graph=retain_graph)
        self._sync_begun = False

    def apply_repeated(self, gradients: Gradients) -> None:
        """Clip and step with the gradients of a repeated step, which are not scaled."""
        if self.clip_repeated is not None:
            for optimizer in self.optimizers:
                self.clip_repeated(optimizer)
        self._clip(self.optimizers, gradients)
        changed = False
        try:
            for optimizer in self.optimizers:
                self._step(optimizer, optimizer.step)
                changed = True
            self.buffers.restore_nonfinite()
            self._end()
        except BaseException:
            self.half_applied |= changed
            raise

    @property
    def mid_round(self) -> bool:
        """True if some optimizers have stepped since the scale was updated, and others have not."""
        return bool(self._stepped)

    def release_scale(self, *, is_cause: bool) -> None:
        """Update the scale that ``apply`` held back; it falls only if it ``is_cause`` of the overflow."""
        if not is_cause:
            self.scaler.excuse_scale()
        self._finish_update()

    def _step(self, optimizer: Optimizer, step: Callable[[], object]) -> None:
        """Run an optimizer's step; note if it raises after it changed something: nobody can undo that."""
        versions, fresh = _first_versions(optimizer), not optimizer.state
        try:
            if self.around_step is None:
                step()
            else:
                with self.around_step(optimizer):
                    step()
        except BaseException:
            self.half_applied |= any(tensor._version != version for tensor, version in versions)
            if fresh and not self.half_applied:
                optimizer.state.clear()  # made before the first change
            raise

    def discard(self) -> None:
        """Remove every trace of a step that is abandoned."""
        self._consensus.discard()
        self.scaler.abandon_step()
        self._stepped.clear()
        self._undo_passes()
        if not self._hosted:
            self.clear()

    def _undo_passes(self) -> None:
        """Remove what forward and backward passes left, except for gradients in parameters."""
        if self._sync_begun:
            self._wrappers.reset()
            self._sync_begun = False
        self._wrappers.drop_gradients()
        self._restore()

    def _restore(self) -> None:
        """Put back what forward passes changed since ``keep_state``."""
        self.step_state.restore()  # first: it brings tensors back whose values are written then
        self.buffers.restore()

    def end_round(self) -> None:
        """Update the scale for the optimizers that stepped, although others have not."""
        if self.mid_round:
            self.scaler.forget_unstepped()
            self._finish_update()

    def restore_state(self, saved: Saved, *, poisoned_only: bool) -> None:
        """Put back what a bad step replaced, if the device alone decided it."""
        self.step_state.restore(saved, poisoned_only=poisoned_only)
        if self._keeps_at_end:
            self.step_state.keep()

    def _end(self) -> None:
        if not self._hosted:
            self.clear()
        if self._keeps_at_end:
            self.keep_state()

    def raise_if_foreign_gradients(self) -> None:
        """Raise if a gradient is there before the step begins: it would be added to those of the step."""
        if self._has_gradients():
            raise UsageError(
                "Parameters of this guard already have gradients before the step begins. They come from "
                "another guard's loss or from your own backward() call.",
                cure="Pass all optimizers of one graph to one guard: Guard(model, [opt_g, opt_d]), or call "
                "optimizer.zero_grad() before the step.",
            )

    def _check_wrapping(self) -> None:
        """Raise at the first step if DDP averages gradients outside of the model; warn if nobody does."""
        if self._wrapping_checked:
            return
        alone: set[int] = set() if self.single_rank else self.private
        if alone and is_replicated_elsewhere(self.model, alone):
            raise UsageError(
                "DistributedDataParallel averages gradients of this guard but is not part of its model, so "
                "norms would be counted once for every rank and a repeat could wait forever.",
                cure="Pass the wrapped model: Guard(ddp, optimizer). Put several wrapped networks into one "
                "module: Guard(nn.ModuleList([first, second]), optimizers).",
            )
        self._wrapping_checked = True
        outside = alone - set(map(id, self.model.parameters()))
        if outside and self._wrappers.replicates:
            logger.warning(
                "%d of the optimizer's parameters are not in the model that DistributedDataParallel wraps, "
                "so each rank trains its own copy. Register them in a module of that model.",
                len(outside),
            )

    def raise_if_unscaled(self) -> None:
        """Raise if the loop has unscaled gradients to which another backward pass would add scaled ones."""
        if any(map(self.scaler.is_unscaled, self.optimizers)):
            raise UsageError(
                "backward() was called after unscale_(), so scaled gradients would be added to "
                "unscaled ones.",
                cure="Call guard.scaler.unscale_(optimizer) after the last backward() of a step.",
            )

    def raise_if_gradients_of_loss_function(self) -> None:
        """Raise if a loss function has run a backward pass: its gradients have no loss scale."""
        if self._has_gradients():
            raise UsageError(
                "loss_fn called backward() itself, so these gradients do not have the loss scale "
                "of the step.",
                cure="Return the sum of the losses, or use torch.autograd.grad for a gradient "
                "penalty. To run the backward pass in parts, call guard.backward(part) for "
                "each part, then guard.update().",
            )

    def _has_gradients(self) -> bool:
        lists = self._parameter_lists()
        return any(params and params[0].grad is not None for params in lists)

    def _parameter_lists(self) -> list[list[Tensor]]:
        """Return the lists of all groups; list.__iter__ does not let MasterWeights collect gradients."""
        return [group["params"] for o in self.optimizers for group in o.param_groups]

    def replace_optimizers(self, left: Sequence[int]) -> None:
        """Refresh names and layout for other optimizers; ``left`` are the ids of those that are gone."""
        for key in left:
            self._stepped.discard(key)
            self.scaler._per_optimizer_states.pop(key, None)
        self._parameter_ids = []
        self.refresh_parameters()

    def count_foreign(self, optimizer: Optimizer) -> int:
        """Return the number of parameters that an optimizer updates outside the model."""
        masters = optimizer.masters().values() if isinstance(optimizer, MasterWeights) else ()
        own = set(map(id, chain(self.model.parameters(), masters)))
        return sum(id(parameter) not in own for parameter in parameters_of(optimizer))

    def refresh_parameters(self) -> bool:
        """Refresh names and layout if the optimizers' parameters changed; return whether they did."""
        # By identity: a parameter may be replaced inside a group, as Gaussian splatting does.
        lists = self._parameter_lists()
        before = self._parameter_ids
        self._parameter_ids = list(map(id, chain.from_iterable(map(list.__iter__, lists))))
        if before == self._parameter_ids:
            return False
        if before:  # gradients of parameters that were not optimized so far are those of many steps
            known = set(before)
            for parameter in chain.from_iterable(map(list.__iter__, lists)):
                if id(parameter) not in known:
                    parameter.grad = None
        self._named = _by_name(unwrap_model(self.model), self.optimizers)
        updated = [(name, parameter) for name, parameter, _ in self._named]
        # Master weights are updated, but the half parameters have the layout over ranks.
        own = dict(unwrap_model(self.model).named_parameters())
        held = [own.get(name, parameter) for name, parameter in updated]
        layout = self._layout = find_layout(self.model, held).agreed(self._layout, self.device)
        self.private = {  # held by this rank alone: experts, pipeline stages
            id(p)
            for p, who in zip(held, layout.holders, strict=True)
            if who.count == 1 and not is_dtensor(p)
        }
        self._consensus = Consensus([name for name, _ in updated], layout, self.config)
        self.replicas.set_parameters(updated, layout)
        return True

    def clear(self) -> None:
        """Clear all gradients, also those that one optimizer's loss left in parameters of another."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _announce(self, batches: StepBatches) -> None:
        assert batches.loss is not None  # noqa: S101 - a complete step has one
        if self._wrappers.is_joining:
            raise UsageError(
                "DDP's join() allows ranks to stop early, but the guard needs all ranks in every "
                "step.",
                cure="Give every rank the same number of batches: DistributedSampler(drop_last=True).",
            )
        if not self._consensus.single_rank:
            fingerprint = self.replicas.fingerprint() if self.compares_ranks() else None
            self._consensus.start_sum(batches.loss, fingerprint, self._alarm())

    def _alarm(self) -> Tensor | None:
        """Return 1 if this rank has an alarm, else 0, for the sum over ranks; None if nobody asks."""
        if self.has_alarm is None:
            return None
        return self._as_float(self.has_alarm(), self.device).double().view(1)

    def _scale(self) -> list[tuple[str, Tensor]]:
        """Return the state of the loss scale, for comparison between ranks."""
        scale, tracker = self.scaler._scale, self.scaler._growth_tracker
        return (
            []
            if scale is None or tracker is None
            else [("loss scale", scale), ("its age", tracker)]
        )

    def _finish_update(self) -> None:
        self.scaler.update()
        self._stepped.clear()

    def _reduce_partial(self, optimizers: Sequence[Optimizer]) -> None:
        if not self.replicas.complete:
            for parameter in (p for optimizer in optimizers for p in parameters_of(optimizer)):
                reduce_partial(parameter)

    def _clip(self, optimizers: Sequence[Optimizer], gradients: Gradients) -> None:
        if self.config.clip is None:
            return
        total = gradients.total
        if self._hosted and self._consensus.sums_early:  # the host has clipped since then
            total = self._measure(optimizers).total
        clipped: Any = [p for o in optimizers for p in parameters_of(o) if p.grad is not None]
        if not self._consensus.sums_early:
            # torch scales tensors of one mesh at a time; here each rank scales its own part.
            clipped = [SimpleNamespace(grad=local_tensor(p.grad)) for p in clipped]
        clip_grads_with_norm_(clipped, self.config.clip.max_norm, total)

    def _measure(self, optimizers: Sequence[Optimizer]) -> Gradients:
        turn = {id(o) for o in optimizers}
        named = [
            (name, p.grad) for name, p, owner in self._named if owner in turn and p.grad is not None
        ]
        if not named:
            raise UsageError(
                "No parameter of the optimizer has a gradient.",
                cure="Either the loss does not depend on these parameters, or the optimizer was created "
                "before model.to(device) replaced them.",
            )
        if not self._consensus.sums_early:  # each rank measures its own part; Consensus sums them
            named = [(name, _own_part(grad)) for name, grad in named]
        return measure(named, 2.0 if self.config.clip is None else self.config.clip.norm_type)


def _first_versions(optimizer: Optimizer) -> list[tuple[Tensor, int]]:
    """Return the first parameter of each group and its state, with their version counters.

    Optimizers change the parameters of a group in order, so these change first.
    """
    found: list[tuple[Tensor, int]] = []
    for group in optimizer.param_groups:
        first = next((p for p in group["params"] if p.grad is not None), None)
        if first is not None:
            state = optimizer.state.get(first, {}).values()
            found += [(t, t._version) for t in (first, *state) if isinstance(t, Tensor)]
    return found


def _own_part(grad: Tensor) -> Tensor:
    part = local_tensor(grad)
    return part if part.numel() else part.new_zeros(1)  # an empty tensor has no largest value


def _by_name(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, Tensor, int]]:
    """Return every optimized parameter with its name and optimizer, in the order of the model."""
    owners = {id(p): id(o) for o in optimizers for p in parameters_of(o)}
    masters: dict[Tensor, Tensor] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, MasterWeights):
            masters |= optimizer.masters()
    named = [(name, masters.get(p, p)) for name, p in model.named_parameters()]
    known = {id(p) for _, p in named}
    # An optimizer may hold parameters outside the model, such as a learned temperature.
    extra = [p for o in optimizers for p in parameters_of(o) if id(p) not in known]
    named += [(f"optimizer parameter {index}", p) for index, p in enumerate(extra)]
    return [(name, p, owners[id(p)]) for name, p in named if id(p) in owners]


def _first_weight(model: nn.Module, optimizers: Sequence[Optimizer]) -> Tensor:
    """Return the first parameter of the model; of a model without any, the first that is optimized."""
    for weight in chain(model.parameters(), *map(parameters_of, optimizers)):
        return weight
    raise UsageError("The model has no parameters, so there is nothing to guard.")


def _scaler(config: GuardConfig, device: torch.device) -> GradScaler:
    if not Precision(config.precision).needs_loss_scale:
        return GradScaler(device.type, init_scale=1.0, floor=1.0, ceiling=1.0)
    scale = config.scale
    return GradScaler(
        device.type,
        init_scale=scale.init,
        growth_factor=scale.growth_factor,
        backoff_factor=scale.backoff_factor,
        growth_interval=scale.growth_interval,
        floor=scale.floor,
        ceiling=_ceiling(config),
    )


def _ceiling(config: GuardConfig) -> float:
    """Return the largest loss scale: a run may begin above the usual one."""
    return max(CEILING, config.scale.init)
