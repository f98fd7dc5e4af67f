"""The guard for frameworks that run backward, clip, clear gradients and step schedulers themselves.

A framework calls a ``GradScaler``. A step therefore consists of five calls, in the order of the framework::

    begin(batch)        before the forward pass of each micro-batch
    scale(loss)         before its backward pass
    unscale(optimizer)  once the last micro-batch is done; the framework may now look at gradients, and clip
    apply(optimizer)    in place of optimizer.step()
    abandon()           if the framework leaves the step out

The micro-batches between two updates are a *window*. One window may serve several optimizers, one after the
other; the first ``begin`` or ``scale`` after an ``apply`` opens the next one. The scale changes between
windows only: the gradients of a window are unscaled by the scale that their losses were multiplied with,
whichever optimizer steps first. An optimizer that steps less often keeps its gradients for a later window;
they are brought to the scale of each window that is added to them.

``guard_scaler.GuardScaler`` is the same guard in the shape that every framework accepts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard import policy
from halfguard.guard.config import GuardConfig
from halfguard.guard.consensus import Gradients
from halfguard.guard.guard import Decided, Guard
from halfguard.guard.metrics_log import LogFunction
from halfguard.guard.recorder import StepReport
from halfguard.guard.scheduler_and_ema import Scheduler
from halfguard.guard.step_batches import MicroBatch, StepBatches, trainable_loss
from halfguard.guard.stepping.forward_pass import FullPrecisionForward
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.guard.unsupported import raise_if_unsupported
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.precision.modes import autocast
from halfguard.records import Action, Summary
from halfguard.step.loss import LossFunction
from halfguard.step.parameters import has_gradients, parameters_of
from halfguard.step.random_state import capture_random_state

logger = logging.getLogger("halfguard")

Repeat = Callable[[Any], "Tensor | Mapping[str, Any]"]
_OWN_STATE = "halfguard"  # in a state_dict, beside the entries of torch's scaler


class HostedGuard(Guard):
    """A guard for a host (a framework) that runs backward, clipping, ``zero_grad`` and schedulers itself.

    ``model`` is the wrapped model (DDP, ``fully_shard``) that the host trains. ``clip(optimizer)`` clips
    gradients in the same way as the host; the guard calls it after it has repeated a step in FP32.
    ``scheduler`` is saved and rolled back with the model, but the host steps it. ``clip`` and ``accumulate``
    in ``config`` are ignored, because the host clips and accumulates. The other arguments are the same as
    for ``Guard``.
    """

    _hosted = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        clip: Callable[[Optimizer], object] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
        log: LogFunction | None = None,
        log_every: int = 50,
    ) -> None:
        given = GuardConfig.load(config)
        own = given.model_copy(update={"clip": None, "accumulate": 1})
        if given.verify is not None:
            raise UsageError(
                "verify needs bit-identical repeats, but a framework may run a step in a context "
                "that cannot be repeated.",
                cure="Disable verify, or use guard.step(loss_fn, batch) in a plain loop.",
            )
        self._full_precision: FullPrecisionForward | None = None  # FP32 as a remedy
        super().__init__(
            model,
            optimizer,
            own,
            scheduler=scheduler,
            run_dir=run_dir,
            entry=entry,
            log=log,
            log_every=log_every,
        )
        self._stepper.clip_repeated = clip
        self._stepper.around_step = self._scheduler_and_ema.rates.cut_during_step
        self.last: StepOutcome | None = None  # of the last apply(); None once a step was abandoned
        self._outcomes: dict[int, StepOutcome] = {}  # the last one of each optimizer
        self._rates_at_skip: dict[int, list[Any]] = {}  # of optimizers whose last step was skipped
        self.repeating = False  # the host's forward pass runs again, in FP32
        self._micro = MicroBatch(None)  # whose forward pass began last
        self._window = StepBatches()  # kept for further optimizers once one of them has stepped
        self._spent = False  # an optimizer has stepped with the present window
        self._stepped_in_window: set[int] = set()
        self._void = False  # a rollback has undone the window
        self._examined: dict[int, tuple[policy.StepLimits, Tensor, Gradients]] = {}
        self._left: set[int] = set()  # optimizers that were unscaled, and not stepped by the host
        self._kept: tuple[list[Optimizer], Tensor] | None = None  # gradients, and their scale
        self._in_loss_fn = False
        self._returned: Node | None = None  # the last operation of the loss that forward() returned
        self._operations_on_loss = 0  # of the host, between forward() and scale()
        self._overlapping = False  # a forward pass began before the last one had a backward pass
        if given.clip is not None and clip is None:
            logger.info(
                "clip.max_norm=%g in the configuration is ignored because the framework clips. Set the "
                "limit there.",
                given.clip.max_norm,
            )
        self._observed = ExitStack()  # the host's passes of a sampled step
        if self.watching is not None:
            # The host's own model runs in a repeat, and one rank alone would wait for the others in it.
            self.watching.audits = self._stepper.single_rank

    # -- the five verbs

    def begin(self, batch: Any = None, *, about: Any = None, repeat: Repeat | None = None) -> None:
        """Begin the forward pass of a micro-batch.

        ``repeat(batch)`` computes the loss again, with the same value that is passed to ``scale``. Without
        it, or with several optimizers, ``skip.on_nonfinite: retry_fp32`` skips the step instead. ``about``
        describes the batch in the journal.
        """
        if self.repeating or self._in_loss_fn:
            return
        self._observed.close()
        with self._transaction:
            self._open_window(late=False)
            self._overlapping = self._in_forward and self._micro.loss_fn is not None
            self._returned = None
            if repeat is not None:
                self._stepper.step_state.expect(repeat, whole=False)
            self._begin_step()
            self._micro = self._micro_batch_of(batch, about, repeat)
        # From here to unscale() the host runs nothing but the two passes.
        self._observed.enter_context(self._observing)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the scaled loss of a micro-batch, for the host's backward pass.

        If the host accumulates gradients, pass the loss after it was divided. A second loss of the same
        forward pass, or a loss without a call of ``begin``, is assigned to the last batch and cannot be
        repeated.
        """
        if self.repeating:
            return loss
        self.batch_index += 1
        with self._transaction:
            first = self._in_forward  # the first loss since begin()
            self._open_window(late=True)
            self._raise_if_unscaled_gradients_stay()
            self._rescale_kept_gradients()
            further = first and bool(self._batches.micro_batches)  # of an open window
            is_cleared = further and not any(map(has_gradients, self.optimizers))
            if is_cleared and not self._stepper.holds_gradients:
                self._forget_cleared_batches()
            elif further:
                self._batches.reduced_each = self._stepper.has_reduced
            self._begin_step(late=True)
            if not (first and self._is_loss_of_forward(loss)):
                self._micro = replace(self._micro, loss_fn=None)
            return self._stepper.scale_loss(trainable_loss(loss), self._micro, self._batches)

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale and measure the gradients of an optimizer. The host can clip them afterwards."""
        optimizer = self._own(optimizer, adopts=True)
        if self.repeating or self._void:
            return
        self._observed.close()
        if not self._window_in_use.micro_batches or id(optimizer) in self._stepped_in_window:
            raise UsageError(
                "unscale() or apply() was called without a call of scale(loss) since the last "
                "apply() of this optimizer.",
                cure="Call scale(loss) before each backward pass, and call backward() on its result.",
            )
        if id(optimizer) in self._examined:
            raise UsageError(
                "unscale() has already been called for this optimizer since its last apply().",
                cure="Call unscale(optimizer) once, after the last micro-batch.",
            )
        with self._transaction:
            self._rescale_kept_gradients()
            if not self._spent:
                self._stepper.raise_if_stepped_in_backward()
            limits = policy.next_limits(self._policy, self.config)
            row, gradients = self._stepper.examine([optimizer], self._window_in_use)
            self._examined[id(optimizer)] = limits, row, gradients

    def apply(self, optimizer: Optimizer) -> StepOutcome:
        """Apply the update, or else skip it, repeat it in FP32 or roll back. Return the outcome."""
        optimizer = self._own(optimizer, adopts=True)
        if self._void and self.last is not None:
            return self.last
        if id(optimizer) not in self._examined:
            self.unscale(optimizer)
        measured = self._examined.pop(id(optimizer))
        self._notice_moved_schedule(optimizer)
        with self._transaction:
            self._window, self._spent = self._window_in_use, True
            self._batches, self._begun = self._window, True
            self._stepped_in_window.add(id(optimizer))
            with self._watched_update(measured[1]):
                self.last = self._conclude([optimizer], *measured)
            self._outcomes[id(optimizer)] = self.last
        self._void = self.last.action is Action.ROLL_BACK
        if self.last.action is Action.SKIP:
            self._rates_at_skip[id(optimizer)] = _rates(optimizer)
        return self.last

    def _notice_moved_schedule(self, optimizer: Optimizer) -> None:
        """Count a learning rate that the host's scheduler has changed since a step was skipped."""
        before = self._rates_at_skip.pop(id(optimizer), None)
        if before is not None and before != _rates(optimizer):
            self._recorder.add_moved_schedule(self.step_index, self.epoch)

    def abandon(self) -> None:
        """Discard the micro-batches since the last step. Every rank must call this method."""
        self._stop_observing()
        self._stepper.discard()
        self._forget_window()
        self.last = None
        self._outcomes.clear()

    # -- for hosts

    def forward(self, loss_fn: LossFunction, batch: Any, *, about: Any = None) -> Tensor:
        """Begin a micro-batch that can be repeated, and return ``loss_fn(model, batch)``.

        ``loss_fn`` must return the loss that is passed to ``scale``. Calls of ``begin`` inside it have no
        effect.
        """
        self.begin(batch, about=about, repeat=partial(loss_fn, self.model))
        self._in_loss_fn = True
        try:
            loss = trainable_loss(loss_fn(self.model, batch))
        finally:
            self._in_loss_fn = False
        self._returned = loss.grad_fn
        return loss

    def expect_divided_loss(self) -> None:
        """Expect ``scale`` to receive the loss from ``forward`` after one division, as in Accelerate."""
        self._operations_on_loss = 1

    def reads_also(self, models: Iterable[nn.Module]) -> None:
        """Register other models that the loss uses, such as a frozen reference; repeats run them in FP32."""
        self._stepper.further_models = list(models)

    def outcome_of(self, optimizer: Optimizer) -> StepOutcome | None:
        """Return the outcome of the optimizer's last step. If it was applied, step the scheduler."""
        return self._outcomes.get(id(self._own(optimizer)))

    def is_unscaled(self, optimizer: Optimizer) -> bool:
        """Return whether the gradients of an optimizer are unscaled and can be clipped."""
        return self.repeating or id(self._own(optimizer)) in self._examined

    def is_finite(self, optimizer: Optimizer) -> bool:
        """Return whether the unscaled gradients of an optimizer are finite, which waits for the device."""
        measured = self._examined.get(id(self._own(optimizer)))
        return measured is None or bool(measured[2].total.isfinite())

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard, which torch's ``GradScaler`` can load as well.

        It contains neither random states nor the gradients of an incomplete step; the host must save them.
        """
        self._process_due(everything=True)
        if self._spent:
            self._end_round()
        own = self._own_state()
        return self.scaler.state_dict() | {_OWN_STATE: own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state from ``state_dict``, or the loss scale from a state of torch's ``GradScaler``."""
        own = state.get(_OWN_STATE)
        scale = {key: value for key, value in state.items() if key != _OWN_STATE}
        if scale and self._takes_over_scale(None if own is None else own["precision"]):
            self.scaler.load_state_dict(scale)
        self._stepper.half_applied = False
        self._forget_window()
        self._kept = None
        if own is not None:
            self._load_own_state(own)
        if self._recovery is not None:
            self._recovery.restart()

    # -- windows

    @property
    def window_has_stepped(self) -> bool:
        """True from the first ``apply`` of a step until the next step begins."""
        return self._spent

    @property
    def has_losses(self) -> bool:
        """True if a loss was scaled but no optimizer has stepped since."""
        return bool(self._batches.micro_batches)

    @property
    def _window_in_use(self) -> StepBatches:
        return self._window if self._spent else self._batches

    def _open_window(self, *, late: bool) -> None:
        """Open a new window if an optimizer has stepped with the present one, or the host left it out."""
        left = set(self._examined)  # unscaled, and not applied
        if self._spent:
            self._end_round()
            self._forget_window()
            self._left = left
        elif left:
            examined = [one for one in self.optimizers if id(one) in left]
            if len(self.optimizers) > 1 and any(map(has_gradients, examined)):
                return  # the loss of another optimizer, before the first one steps
            if late:  # its forward pass has run: buffers are no longer those of the window
                self._stepper.scaler.abandon_step()
            else:
                self._stepper.discard()
            self._forget_window()
            self._left = left

    def _end_round(self) -> None:
        """Let the scale change; note the scale of gradients that optimizers keep for a later step."""
        waiting = [one for one in self.optimizers if id(one) not in self._stepped_in_window]
        scale = self.scaler._scale
        if waiting and scale is not None and self._kept is None:
            self._kept = waiting, scale.clone()
        self._stepper.end_round()

    def _rescale_kept_gradients(self) -> None:
        """Bring the gradients of earlier windows to the present scale. Powers of two make it exact."""
        kept, self._kept = self._kept, None
        if kept is None or self.scaler._scale is None:
            return
        ratio = self.scaler._scale / kept[1]
        groups = [group["params"] for one in kept[0] for group in one.param_groups]
        for gradient in (p.grad for params in groups for p in params if p.grad is not None):
            local_tensor(gradient).mul_(ratio.to(gradient.device))

    def _raise_if_unscaled_gradients_stay(self) -> None:
        """Raise if gradients of the next loss would be added to gradients that are unscaled already."""
        left, self._left = self._left, set()
        if any(id(one) in left and _holds_values(one) for one in self.optimizers):
            raise UsageError(
                "Gradients were unscaled but neither applied nor cleared. The next backward pass "
                "would add gradients to them that have a different scale.",
                cure="Unscale and clip only after the last micro-batch (Accelerate: if "
                "accelerator.sync_gradients), and call optimizer.zero_grad() if you skip a "
                "step.",
            )

    def _forget_cleared_batches(self) -> None:
        """Begin the window anew: the host has cleared the gradients of the micro-batches so far."""
        if self._examined:
            self._stepper.scaler.abandon_step()
        self._examined.clear()
        self._batches = StepBatches()

    def _is_loss_of_forward(self, loss: Tensor) -> bool:
        """Return whether a repetition of the last forward pass would compute this very loss."""
        expected, self._returned = self._returned, None
        if self._overlapping:
            return False
        if expected is None:
            return True  # begin() was given its own way to repeat
        node = loss.grad_fn
        for _ in range(self._operations_on_loss):
            parents = () if node is None else node.next_functions
            node = parents[0][0] if parents else None
        return node is expected

    def _forget_window(self) -> None:
        self._batches, self._window = StepBatches(), StepBatches()
        self._begun = self._spent = self._void = self._in_forward = False
        self._examined.clear()
        self._stepped_in_window.clear()

    def close(self) -> Summary:
        """Complete the journal, and return the counts of the whole run."""
        self._stop_observing()
        return super().close()

    def _stop_observing(self) -> None:
        self._observed.close()
        if self.watching is not None:
            self.watching.abandon()

    def _abandon(self, error: BaseException) -> None:
        self._observed.close()
        super()._abandon(error)
        self._kept = None
        self._stepper.clear()  # what a failed pass left in them is of no use to the host
        self._forget_window()

    def _own(self, optimizer: Optimizer, *, adopts: bool = False) -> Optimizer:
        """Return the optimizer of the guard that this is, or that this wraps."""
        inner: object = optimizer
        while inner is not None:
            for own in self.optimizers:
                if own is inner:
                    return own
            inner = getattr(inner, "optimizer", None)
        if adopts and self._recovery is None and has_gradients(optimizer):
            return self._adopt(optimizer)
        why = "" if self._recovery is None else ", so snapshots do not contain its state"
        raise UsageError(
            f"This {type(optimizer).__name__} was not passed to the guard{why}.",
            cure="Pass every optimizer that steps to the guard: HostedGuard(model, [first, second]). If it "
            "was created later, create a new guard, and call scaler.bind(guard).",
        )

    def _adopt(self, optimizer: Optimizer) -> Optimizer:
        """Guard an optimizer that was created after the guard; those with its parameters give way to it."""
        raise_if_unsupported(self.model, [optimizer])
        taken = set(map(id, parameters_of(optimizer)))
        left = [one for one in self.optimizers if taken & set(map(id, parameters_of(one)))]
        self.optimizers[:] = [one for one in self.optimizers if one not in left] + [optimizer]
        self._forget_optimizers(list(map(id, left)))
        foreign = self._stepper.count_foreign(optimizer)
        if foreign and self._first_time("foreign parameters"):
            logger.warning(
                "This %s was created after the guard, and %d of its %d parameters are not in the guard's "
                "model. Their gradients are checked, but the guard cannot restore the buffers of another "
                "model after a skipped step or repeat its steps in FP32. To guard that model completely, "
                "create a HostedGuard for it and call scaler.bind(guard).",
                type(optimizer).__name__,
                foreign,
                len(taken),
            )
        return optimizer

    def _forget_optimizers(self, left: Sequence[int]) -> None:
        """Forget optimizers, by their ids, which other objects may have later."""
        self._stepper.replace_optimizers(left)
        for key in left:
            for by_id in (self._outcomes, self._rates_at_skip, self._examined):
                by_id.pop(key, None)
        self._stepped_in_window.difference_update(left)
        self._left.difference_update(left)
        if self._kept is not None:
            self._kept = [one for one in self._kept[0] if id(one) not in left], self._kept[1]

    # -- how a step differs from that of a plain loop

    @property
    def _needs_answer_now(self) -> bool:
        """True: a host asks at once whether the step was applied, to hold its scheduler."""
        return True

    def _micro_batch_of(self, batch: Any, about: Any, repeat: Repeat | None) -> MicroBatch:
        if repeat is None or len(self.optimizers) > 1:
            rng = None if self._recorder.incidents is None else capture_random_state()
            return MicroBatch(batch, about, None, rng)
        return self._micro_batch(lambda _, given: repeat(given), batch, about)

    def _config_to_decide(self, report: StepReport) -> GuardConfig:
        if report.repeatable:
            return self.config
        retries = self.config.skip.on_nonfinite == "retry_fp32"
        if (retries or self.config.heal is not None) and self._first_time("not repeatable"):
            lost = "repeated in FP32 but skipped" if retries else "analyzed, so heal cannot act"
            logger.warning(
                "step %d is not %s: its forward pass has no repeat function, its loss was changed "
                "afterwards or combined from several losses, or the guard has several optimizers. "
                "This is reported only once.",
                report.step,
                lost + (", nor healed" if retries and self.config.heal is not None else ""),
            )
        return policy.without_repeat(self.config) if retries else self.config

    def _retry(self, seen: policy.Signals, report: StepReport) -> Decided:
        self._stepper.clear()
        with self._repeating():
            return super()._retry(seen, report)

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        self.repeating = True
        try:
            yield
        finally:
            self.repeating = False

    def _begin_forward(self) -> AbstractContextManager[Any]:
        return autocast(self.config.precision, self._stepper.device.type)

    def _continue_with(self, config: GuardConfig) -> None:
        super()._continue_with(config)
        if self._full_precision is not None:
            self._full_precision.remove()
            self._full_precision = None
        if config.precision == "fp32" != self._initial_config.precision:
            self._full_precision = FullPrecisionForward(self.model, self._stepper.device.type)

    # -- the forms of a plain loop

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error, because the host runs backward itself."""
        raise _not_hosted("step(loss_fn, batch)")

    def backward(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error, because the host runs backward itself."""
        raise _not_hosted("backward(loss)")

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error, because ``unscale`` and ``apply`` replace this method."""
        raise _not_hosted("update()")

    def resume(self) -> NoReturn:
        """Raise an error, because the host loads its own checkpoint."""
        raise _not_hosted("resume()")


def _holds_values(optimizer: Optimizer) -> bool:
    """Return whether a gradient is not 0: ``zero_grad(set_to_none=False)`` leaves zeros. Reads the device."""
    gradients = (p.grad for p in parameters_of(optimizer))
    return any(bool(local_tensor(grad).any()) for grad in gradients if grad is not None)


def _rates(optimizer: Optimizer) -> list[Any]:
    """Return the learning rates that are numbers: reading a tensor would wait for the device."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return [rate for rate in rates if isinstance(rate, int | float)]


def _not_hosted(call: str) -> UsageError:
    return UsageError(
        f"{call} is for a plain loop; this guard is hosted by a framework.",
        cure="Call begin, scale, unscale and apply, or use a halfguard.Guard.",
    )


class HeldScheduler:
    """A scheduler that stands still if the last step of its optimizer was not applied."""

    def __init__(self, scheduler: Any, guard: HostedGuard) -> None:
        self._scheduler, self._guard = scheduler, guard

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step, unless the optimizer did not."""
        outcome = self._guard.outcome_of(self._scheduler.optimizer)
        if outcome is None or outcome.applied:
            self._scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_scheduler":  # not there yet, as in a copy
            raise AttributeError(name)
        return getattr(self._scheduler, name)
