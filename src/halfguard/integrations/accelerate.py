"""The guard inside Accelerate: ``guard = attach(Accelerator(mixed_precision="fp16"), "fp16_safe")``.

The training loop does not change. ``attach`` gives the accelerator a guard as its loss scaler, and a hook on
each prepared model begins the steps. The accelerator sets the precision (``fp16``, ``bf16`` or ``no``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import SCALER_NAME
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.integrations.declared_precision import precision_of, raise_if_unsupported
from halfguard.records import Summary
from halfguard.step.loss import LossFunction, scalar_loss
from halfguard.step.parameters import parameters_of

logger = logging.getLogger("halfguard")


def attach(
    accelerator: Accelerator,
    config: GuardConfig | Mapping[str, Any] | str | Path = "default",
    *,
    run_dir: str | os.PathLike[str] | None = None,
    entry: str = "",
    log_every: int = 50,
) -> AcceleratorGuard:
    """Guard every step of the optimizers that this accelerator will prepare.

    Call this function before ``accelerator.prepare``. ``config``, ``run_dir`` and ``entry`` are the same as
    for ``halfguard.Guard``. ``accelerator.log`` receives the metrics every ``log_every`` steps and at each
    unusual step.
    """
    raise_if_unsupported(accelerator)
    if accelerator._optimizers or isinstance(accelerator.scaler, GuardScaler):
        told = "The accelerator has already prepared an optimizer or already has a guard."
        raise UsageError(told, cure="Call attach() once, directly after Accelerator(...).")
    if accelerator.scaler_handler is not None:
        logger.warning("GradScalerKwargs are not used: set `scale` in the guard's configuration.")
    settings = {"run_dir": run_dir, "entry": entry, "log_every": log_every}
    return AcceleratorGuard(accelerator, GuardConfig.load(config), settings)


def reduce_in_fp32(accelerator: Accelerator) -> None:
    """Make FSDP2 sum gradients over ranks in FP32.

    Call this function before ``accelerator.prepare`` or ``trainer.train``. Accelerate's own policy sums
    gradients in 16-bit precision, and a Trainer has no argument to change this.
    """
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.mixed_precision_policy is None or plugin.fsdp_version != 2:
        raise UsageError("This accelerator has no FSDP2 plugin with a mixed-precision policy.")
    policy = replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32)
    plugin.mixed_precision_policy = policy


class AcceleratorGuard:
    """The guard of an accelerator, created by ``attach``."""

    def __init__(self, accelerator: Any, config: GuardConfig, settings: dict[str, Any]) -> None:
        self.accelerator, self._config, self._settings = accelerator, config, settings
        self.scaler = accelerator.scaler = GuardScaler()
        self._models: list[nn.Module] = []  # as prepare() returned them: wrapped
        self._clips: list[Callable[[], Any]] = []  # since the last forward pass
        self._clipping: set[int] = set()  # parameters that are being clipped
        # Attributes hide methods: these call the accelerator's own method and more.
        around: dict[str, Callable[..., Any]] = {
            "prepare": self._prepare,
            "prepare_model": self._prepare_model,
            "clip_grad_norm_": self._clip,
            "clip_grad_value_": self._clip,
            "save_state": self._save_state,
            "load_state": self._load_state,
            "free_memory": self._free_memory,
            "end_training": self._end_training,
        }
        for name, call in around.items():
            setattr(accelerator, name, partial(call, getattr(accelerator, name)))
        # Accelerate unscales in FP16 only; in BF16 the guard would measure what is already clipped.
        accelerator.unscale_gradients = self._unscale

    # -- for the training loop

    def forward(self, loss_fn: LossFunction, batch: Any, *, about: Any = None) -> Tensor:
        """Return ``loss_fn(model, batch)`` for ``accelerator.backward``. The guard can repeat it in FP32."""
        hosted = self._begun()

        def loss_of(model: nn.Module, given: Any) -> Tensor:
            loss = scalar_loss(loss_fn(model, given))
            parts = self.accelerator.gradient_accumulation_steps  # accelerator.backward divides
            return loss / parts if hosted.repeating else loss

        return hosted.forward(loss_of, batch, about=about)

    @property
    def hosted(self) -> HostedGuard:
        """The ``HostedGuard``, which exists from the first step on."""
        if self.scaler.guard is None:
            raise UsageError(
                "The guard does not exist before the first forward pass in train mode."
            )
        return self.scaler.guard

    def close(self) -> Summary | None:
        """Complete the journal, as ``accelerator.end_training()`` does, and return the counts."""
        return None if self.scaler.guard is None else self.scaler.guard.close()

    # -- a step

    def _prepare(self, prepare: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        prepared = prepare(*args, **kw)  # FSDP2 shards a model here, and calls no prepare_model
        for one in prepared if isinstance(prepared, list | tuple) else [prepared]:
            if isinstance(one, nn.Module):
                self._hook(one)
        return prepared

    def _prepare_model(self, prepare: Callable[..., nn.Module], *args: Any, **kw: Any) -> nn.Module:
        return self._hook(prepare(*args, **kw))

    def _hook(self, model: nn.Module) -> nn.Module:
        if all(model is not known for known in self._models):
            self._models.append(model)
            # Before FSDP2's own hook, which casts the inputs to half.
            model.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True)
        return model

    def _before_forward(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if model.training and torch.is_grad_enabled() and self.accelerator._optimizers:
            self._begun().begin((args, kwargs))

    def _begun(self) -> HostedGuard:
        hosted = self.scaler.guard or self._make_guard()
        self._clips = self._clips if hosted.repeating else []
        return hosted

    def _make_guard(self) -> HostedGuard:
        accelerator = self.accelerator
        optimizers = [unwrap_optimizer(one) for one in accelerator._optimizers]
        trained = set().union(*map(_parameters, optimizers))
        models = [m for m in self._models if not trained.isdisjoint(map(id, m.parameters()))]
        model = models[0] if len(models) == 1 else nn.ModuleList(models)
        strict = self._config.strict
        precision = precision_of(accelerator, model, optimizers, strict=strict)
        hosted = HostedGuard(
            model,
            optimizers,
            self._config.model_copy(update={"precision": precision}),
            scheduler=[one.scheduler for one in accelerator._schedulers],
            clip=lambda _: [clip() for clip in self._clips],
            log=accelerator.log,
            **self._settings,
        )
        hosted.expect_divided_loss()
        self.scaler.bind(hosted)
        return hosted

    def _unscale(self, optimizer: Any = None) -> None:
        given = self.accelerator._optimizers if optimizer is None else optimizer
        for one in map(unwrap_optimizer, given if isinstance(given, list | tuple) else [given]):
            others = self._clipping and self._clipping.isdisjoint(_parameters(one))
            if not others and not self.hosted.is_unscaled(one):
                self.scaler.unscale_(one)

    def _clip(self, clip: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """Clip, and remember how: the gradients of a repeated step are clipped in the same way."""
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if not self.hosted.repeating:
            self._clips.append(partial(clip, parameters, *args, **kwargs))
        self._clipping = set(map(id, parameters))
        try:
            return clip(parameters, *args, **kwargs)
        finally:
            self._clipping = set()

    def _save_state(self, save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.scaler.guard is None and self.accelerator._optimizers:
            self._make_guard()  # so that a checkpoint before the first step has a loss scale
        return save(*args, **kwargs)

    def _load_state(self, load: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            load(*args, **kwargs)
        except FileNotFoundError as error:
            if Path(str(error.filename)).name != SCALER_NAME:
                raise
            self.accelerator.scaler = None  # a run in BF16 or FP32 without a guard has saved none
            load(*args, **kwargs)
        finally:
            self.accelerator.scaler = self.scaler

    def _free_memory(self, free: Callable[..., Any], *objects: Any) -> Any:
        self.close()
        self.scaler.guard, self._models, self._clips = None, [], []
        return free(*objects)

    def _end_training(self, end: Callable[[], None]) -> None:
        self.close()
        end()


def _parameters(optimizer: Optimizer) -> set[int]:
    return set(map(id, parameters_of(optimizer)))


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside an optimizer of the accelerator."""
    while hasattr(optimizer, "accelerator_state"):
        optimizer = optimizer.optimizer
    return optimizer
