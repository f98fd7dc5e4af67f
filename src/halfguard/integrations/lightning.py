"""The guard as a precision plugin of Lightning: ``Trainer(plugins=GuardPrecision("fp16_safe"))``.

Lightning still runs ``training_step``, backward, hooks, clipping and schedulers. The plugin is Lightning's
``MixedPrecision`` with the guard instead of the loss scaler. A step that overflowed only in 16-bit precision
is repeated through ``strategy.training_step``. Lightning's closure is not used, because with accumulation it
exists only for the last micro-batch. With manual optimization, steps are skipped instead of being repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HeldScheduler, HostedGuard
from halfguard.integrations.declared_precision import check_declared
from halfguard.integrations.lightning_config import LIGHTNING_NAMES, load_mixed, warn_of_unused
from halfguard.integrations.lightning_metrics import StepMetrics
from halfguard.records.step import Action

_STOCK = "MixedPrecision"  # Lightning's key for the state of its own plugin


class GuardPrecision(MixedPrecision):
    """The guard for a ``Trainer``, on one device or with DDP: ``Trainer(plugins=GuardPrecision(config))``.

    ``config``, ``run_dir`` and ``entry`` are the same as for ``halfguard.Guard``. Clipping and accumulation
    are still arguments of the ``Trainer``. After ``fit`` has begun, ``guard`` is the guard.
    """

    scaler: Any
    guard: HostedGuard | None = None

    def __init__(
        self,
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
    ) -> None:
        self._config, self._run_dir, self._entry = load_mixed(config), run_dir, entry
        self.precision = LIGHTNING_NAMES[self._config.precision]
        self.device = "cpu"  # the model's, once there is one
        self.scaler = GuardScaler()
        self._callback: GuardCallback | None = None
        self._module: Any = None
        self._metrics: Any = None  # StepMetrics, once there is a module

    def autocast_context_manager(self) -> torch.autocast:
        """Return Lightning's autocast context, which is disabled while the model runs in FP32."""
        config = self._config if self.guard is None else self.guard.config
        if config.precision == "fp32":
            return torch.autocast(self.device, enabled=False)
        return super().autocast_context_manager()

    def connect(
        self, model: nn.Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        """Create the guard for the model, the optimizers and the schedulers."""
        self._module = next(m for m in model.modules() if isinstance(m, LightningModule))
        self.device = self._module.device.type
        trainer = self._module.trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return model, optimizers, lr_schedulers
        warn_of_unused(self._config, trainer.gradient_clip_val, trainer.accumulate_grad_batches)
        check_declared(
            model, optimizers, self._config.precision, strict=self._config.strict, autocasts=True
        )
        per_step = [c for c in lr_schedulers if c.interval == "step" and not c.reduce_on_plateau]
        self.guard = HostedGuard(
            model,
            optimizers,
            self._config,
            scheduler=[c.scheduler for c in per_step],
            clip=lambda optimizer: self._after_closure(self._module, optimizer),  # hooks, too
            run_dir=self._run_dir,
            entry=self._entry,
            log=partial(log_to_all, trainer),
            log_every=max(1, trainer.log_every_n_steps),
        )
        before, self.scaler = self.scaler.state_dict(), GuardScaler(self.guard)
        self.scaler.load_state_dict(before)  # of an earlier fit(), or nothing
        for scheduler_config in (c for c in per_step if c.frequency == 1):
            scheduler_config.scheduler = HeldScheduler(scheduler_config.scheduler, self.guard)
        self._callback = GuardCallback(self.guard)
        self._metrics = StepMetrics(self._module)
        trainer.callbacks.insert(0, self._callback)  # before those that save checkpoints
        return model, optimizers, lr_schedulers

    @contextmanager
    def train_step_context(self) -> Iterator[None]:
        """Begin a step, and run the training step in the precision of the guard."""
        batch, index = (None, 0) if self._callback is None else self._callback.batch
        can_repeat = self._module.automatic_optimization and batch is not None
        repeat = self._repeat(index) if can_repeat else None
        self._required.begin(batch, about=f"batch {index}", repeat=repeat)
        if self._metrics is not None and not self._required.repeating:
            self._metrics.begin()
        with self.forward_context():
            yield

    def _repeat(self, index: int) -> Callable[[Any], Tensor]:
        """Return a function that runs the training step again, without logging a second time."""
        module, trainer, metrics = self._module, self._module.trainer, self._metrics
        parts = trainer.accumulate_grad_batches
        has_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)

        def training_step(batch: Any) -> Tensor:
            with metrics.repeating(applied=self._required.repeating):
                output = trainer.strategy.training_step(
                    *((batch, index) if has_index else (batch,))
                )
            loss: Tensor = (output["loss"] if isinstance(output, Mapping) else output) / parts
            return loss

        return training_step

    def optimizer_step(  # type: ignore[override]
        self,
        optimizer: Any,
        model: LightningModule,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> Any:
        """Run forward and backward, unscale, let Lightning clip, and apply or skip the step."""
        result = closure()
        if getattr(model.trainer.fit_loop, "_skip_backward", False):
            return result  # SWA renews statistics
        if result is None and model.automatic_optimization:  # training_step returned None
            self._required.abandon()
            return None
        if not self._required.is_unscaled(optimizer):
            self._required.unscale(optimizer)
        self._after_closure(model, optimizer)
        self.scaler.step(optimizer, **kwargs)
        last = self._required.last
        if self._metrics is not None:
            self._metrics.end(repeated=last is not None and last.action is Action.RETRY)
        return result

    def clip_gradients(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip unscaled gradients, including those of fused optimizers and of manual optimization."""
        if not self._required.is_unscaled(optimizer):
            self._required.unscale(optimizer)
        Precision.clip_gradients(self, optimizer, *args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard, including the entries of torch's loss scaler."""
        return self.scaler.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the guard, or of Lightning's own plugin."""
        self.scaler.load_state_dict(state_dict)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Also save the loss scale for Lightning's own plugin, so that a run can switch back to it."""
        if self.guard is not None and self._config.precision == "fp16-mixed":
            checkpoint[_STOCK] = torch.amp.GradScaler.state_dict(self.guard.scaler)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the loss scale of a run that used Lightning's own plugin."""
        if checkpoint.get(_STOCK) and type(self).__qualname__ not in checkpoint:
            self.load_state_dict(checkpoint[_STOCK])

    def teardown(self) -> None:
        """Close the journal and the snapshots at the end of fit(), even after an error."""
        if self._callback is not None:
            self._module.trainer.callbacks.remove(self._callback)
            self._callback = None
            self._required.close()

    @property
    def _required(self) -> HostedGuard:
        if self.guard is None:
            raise UsageError(
                "The guard does not exist before fit().", cure="Call trainer.fit(model) first."
            )
        return self.guard


class GuardCallback(Callback):
    """Passes each batch to the plugin, and logs the counts of each epoch."""

    def __init__(self, guard: HostedGuard) -> None:
        self._guard = guard
        self.batch: list[Any] = [None, 0]  # the present one, and its index

    def on_train_batch_start(self, trainer: Trainer, *call: Any) -> None:
        """Record the batch and the epoch. A resumed run may begin in the middle of an epoch."""
        _, *self.batch = call
        self._guard.epoch = trainer.current_epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the counts of the epoch, and show them in the progress bar."""
        summary = self._guard.end_epoch()
        row = {
            "halfguard/epoch_skipped": float(sum(summary.skipped.values())),
            "halfguard/epoch_retried": float(summary.retried),
            "halfguard/epoch_scale": summary.scale,
        }
        pl_module.log_dict(row, prog_bar=True, sync_dist=trainer.world_size > 1)


def log_to_all(trainer: Trainer, metrics: dict[str, float], _: int) -> None:
    """Log to every logger of the Trainer, at its own step."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)
