"""The guard inside transformers' Trainer: ``GuardedTrainer(model, args, ..., guard="fp16_safe")``.

The Trainer still computes losses, accumulates, clips, schedules, saves and logs. ``GuardMixin`` is listed
before a Trainer in the bases of a class (this works for TRL's trainers as well). It gives the accelerator a
guard as its loss scaler. The training arguments set the precision (``fp16``, ``bf16`` or neither).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from halfguard.guard.config import GuardConfig
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.integrations.accelerate import unwrap_optimizer
from halfguard.integrations.declared_precision import precision_of, raise_if_unsupported
from halfguard.precision.declared_dtypes import rollout_of
from halfguard.records.step import Action

_LOGGED = "halfguard/"


class GuardMixin:
    """Guards every optimizer step of a Trainer. List it before the Trainer in the bases of a class.

    ``guard`` is the configuration: the name of a preset, a YAML file, a mapping or a ``GuardConfig``.
    ``run_dir`` and ``entry`` are the same as for ``halfguard.Guard``. From the first step on,
    ``trainer.guard`` is the ``HostedGuard``.
    """

    accelerator: Any  # these five are the Trainer's
    args: Any
    state: Any
    optimizer: Any
    lr_scheduler: Any

    guard: HostedGuard | None = None
    _micro_batch: tuple[nn.Module, Any] | None = (
        None  # model and item count, until its inputs are ready
    )
    _scheduler: Any = None  # that the guard has
    _repeated_inputs: Any = None  # of the micro-batch whose loss is computed again
    _micro_batches = 0  # since the last step of the optimizer
    _repeated_losses: tuple[Tensor, ...] = ()  # of these micro-batches, and of trials before
    _logged_sum: Tensor | None = None  # the Trainer's sum of losses after the last step

    def __init__(
        self,
        *args: Any,
        guard: GuardConfig | Mapping[str, Any] | str | Path = "default",
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
        **kwargs: Any,
    ) -> None:
        self._guard_config = GuardConfig.load(guard)
        self._run_dir, self._entry = run_dir, entry
        super().__init__(*args, **kwargs)

    # -- the guard in place of the accelerator's scaler

    def create_accelerator_and_postprocess(self) -> None:
        """Give the accelerator its scaler before it prepares an optimizer."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        raise_if_unsupported(self.accelerator)
        self.accelerator.scaler = GuardScaler()
        # Accelerate unscales in FP16 only; in BF16 the guard would measure what is already clipped.
        self.accelerator.unscale_gradients = self._unscale

    def _unscale(self, optimizer: Any = None) -> None:
        known = [] if self.guard is None else self.guard.optimizers
        for one in known if optimizer is None else [optimizer]:
            self.accelerator.scaler.unscale_(one)

    def _make_guard(self, model: nn.Module) -> None:
        """Make the guard once the model is wrapped, and another one for each further call of train()."""
        optimizer = unwrap_optimizer(self.optimizer)
        same = self.guard is not None and self.guard.optimizers == [optimizer]
        if same and self._scheduler is self.lr_scheduler:  # train() makes one each time
            return
        before = self.guard.state_dict() if same and self.guard is not None else {}
        self._scheduler = self.lr_scheduler
        strict, rollout = self._guard_config.strict, rollout_of(self)
        precision = precision_of(
            self.accelerator, model, [optimizer], strict=strict, rollout=rollout
        )
        self.guard = HostedGuard(
            model,
            optimizer,
            self._guard_config.model_copy(update={"precision": precision}),
            scheduler=self.lr_scheduler,
            clip=lambda _: self._clip_repeated(model),
            run_dir=self._run_dir,
            entry=self._entry,
        )
        others = [one for one in vars(self).values() if isinstance(one, nn.Module)]
        self.guard.reads_also(one for one in others if one is not model)  # TRL's ref_model
        self.guard.load_state_dict(before)
        self.accelerator.scaler.bind(self.guard)

    def _clip_repeated(self, model: nn.Module) -> None:
        limit = self.args.max_grad_norm
        if limit is not None and limit > 0:
            self.accelerator.clip_grad_norm_(model.parameters(), limit)  # as the Trainer does

    # -- a step

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and complete the journal at the end, even after an error."""
        self._logged_sum = None
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self.guard is not None:
                self.guard.close()

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Compute the loss of a micro-batch under the guard."""
        self._make_guard(model)
        self._micro_batch = model, num_items_in_batch
        try:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        finally:
            self._micro_batch = None
        return loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Begin the step with inputs that are on the device; GRPO has generated its completions here."""
        if self._repeated_inputs is not None:
            return self._repeated_inputs
        inputs = super()._prepare_inputs(inputs)  # type: ignore[misc]
        if self._micro_batch is not None and self.guard is not None:
            (model, items), self._micro_batch = self._micro_batch, None

            def repeat(given: Any) -> Tensor:
                return self._loss_again(model, given, items)

            self._micro_batches += 1
            self.guard.begin(inputs, about=f"step {self.state.global_step}", repeat=repeat)
        return inputs

    def _loss_again(self, model: nn.Module, inputs: Any, items: Any) -> Tensor:
        """Compute the loss of a micro-batch once more, as the accelerator would scale it, and no more."""
        losses: list[Tensor] = []
        self._repeated_inputs = inputs
        # An attribute hides the method: the guard runs the backward pass itself.
        self.accelerator.backward = lambda loss, **_: losses.append(loss)
        try:
            with _unchanged_attributes(self):
                self._plain_training_step(model, inputs, items)
        finally:
            del self.accelerator.backward
            self._repeated_inputs = None
        (loss,) = losses
        if self.guard is not None and self.guard.repeating:
            self._repeated_losses += (loss.detach(),)
        return loss / float(self.accelerator.gradient_accumulation_steps)

    @property
    def _plain_training_step(self) -> Callable[..., Any]:
        """The training step that computes losses. Those of TRL add counts and timings to it, or generate."""
        bases = type(self).__mro__
        for base in bases[bases.index(GuardMixin) + 1 :]:
            if "training_step" in vars(base) and not base.__module__.startswith("trl."):
                return vars(base)["training_step"].__get__(self)  # type: ignore[no-any-return]
        raise AssertionError("GuardMixin stands before a Trainer")

    # -- what is told

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Let the Trainer log the losses of a repeat instead of those of the step that it replaced."""
        last = None if self.guard is None else self.guard.last
        again = self._repeated_losses[-self._micro_batches :]
        if last is not None and last.action is Action.RETRY and again:
            before = self._logged_sum
            tr_loss.copy_(sum(again, start=torch.zeros_like(tr_loss) if before is None else before))
        self._micro_batches, self._repeated_losses = 0, ()
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)  # type: ignore[misc]
        self._logged_sum = tr_loss.clone()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the counts of the steps in addition to the loss."""
        if self.guard is not None and self.guard.last is not None and "loss" in logs:
            counts = self.guard.counts
            if "grad_norm" in logs and self.guard.last.action is Action.RETRY:
                logs = logs | {
                    "grad_norm": self.guard.last.grad_norm
                }  # of the step that was applied
            logs = logs | {
                f"{_LOGGED}scale": self.guard.last.scale,
                f"{_LOGGED}skipped_steps": float(sum(counts.skipped.values())),
                f"{_LOGGED}retried_steps": float(counts.retried),
            }
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class GuardedTrainer(GuardMixin, Trainer):
    """A Trainer of transformers whose steps are guarded."""


@contextmanager
def _unchanged_attributes(trainer: object) -> Iterator[None]:
    """Restore a trainer's counters, and the metrics that TRL collects while it computes a loss."""
    before = dict(vars(trainer))
    metrics = copy.deepcopy(before.get("_metrics"))
    try:
        yield
    finally:
        vars(trainer).update(before)
        if metrics is not None:
            vars(trainer)["_metrics"] = metrics
