"""The guard as a precision plugin for Lightning Fabric.

``setup`` creates the final model and optimizer, so ``bind`` creates the guard after it. A step begins with
the model's forward pass in training mode. Only ``precision.forward(loss_fn, batch)`` can be repeated in
FP32, because the guard then knows how to compute the loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.guard.scheduler_and_ema import Scheduler
from halfguard.integrations.lightning_config import LIGHTNING_NAMES, load_mixed
from halfguard.step.loss import LossFunction


class GuardFabricPrecision(MixedPrecision):
    """The guard for Fabric: ``Fabric(plugins=precision)``, then ``precision.bind(model, optimizer)``."""

    scaler: Any

    def __init__(
        self,
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
    ) -> None:
        self._config = load_mixed(config)
        super().__init__("bf16-mixed", "cpu")  # the model's device, once there is one
        self.precision = LIGHTNING_NAMES[self._config.precision]
        half = self.precision == "16-mixed"
        self._desired_input_dtype = torch.float16 if half else torch.bfloat16
        self.scaler = GuardScaler()
        self._run_dir, self._entry = run_dir, entry
        self._model: Any = None
        self._inputs: Any = None

    def bind(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        clip: Callable[[Optimizer], object] | None = None,
    ) -> HostedGuard:
        """Guard what ``fabric.setup`` returned. After a repeat in FP32, ``clip`` clips the gradients."""
        optimizers = [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer)
        self._model, forward = model, getattr(model, "_forward_module", model)
        self.device = next(model.parameters()).device.type
        guard = HostedGuard(
            forward,
            [getattr(one, "optimizer", one) for one in optimizers],
            self._config,
            scheduler=scheduler,
            clip=clip,
            run_dir=self._run_dir,
            entry=self._entry,
        )
        self.scaler.bind(guard)
        return guard

    @property
    def guard(self) -> HostedGuard:
        """The guard that ``bind`` created."""
        if self.scaler.guard is None:
            raise UsageError(
                "This precision plugin has no guard yet.",
                cure="Call precision.bind(model, optimizer) with the objects that fabric.setup() returned.",
            )
        return self.scaler.guard  # type: ignore[no-any-return]

    def forward(self, loss_fn: LossFunction, batch: Any, *, about: Any = None) -> Tensor:
        """Return ``loss_fn(model, batch)`` for ``backward``. The guard can repeat it in FP32."""

        def loss(inner: Any, given: Any) -> Any:
            # Fabric's own wrapper converts to half, and lets nobody else run backward.
            return loss_fn(inner if self.guard.repeating else self._model, given)

        return self.guard.forward(loss, batch, about=about)

    def convert_input(self, data: Any) -> Any:
        """Convert the inputs of the model, unless it runs in FP32."""
        self._inputs = data
        return data if self._in_fp32 else super().convert_input(data)

    def forward_context(self) -> AbstractContextManager[Any]:
        """Begin a step if the model is in training mode, and return the autocast context."""
        inputs, self._inputs = self._inputs, None
        if torch.is_grad_enabled() and self._model is not None and self._model.training:
            self.guard.begin(inputs)
        if self._in_fp32:
            return torch.autocast(self.device, enabled=False)
        return super().forward_context()

    @property
    def _in_fp32(self) -> bool:
        guard = self.scaler.guard
        return (self._config if guard is None else guard.config).precision == "fp32"

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale the gradients before clipping, including those of fused optimizers."""
        if not self.guard.is_unscaled(optimizer):
            self.scaler.unscale_(optimizer)

    def main_params(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        """Yield the parameters to clip, or none if a gradient is not finite."""
        if self.guard.is_finite(optimizer):
            yield from super().main_params(optimizer)

    def teardown(self) -> None:
        """Close the journal and the snapshots."""
        if self.scaler.guard is not None:
            self.scaler.guard.close()
