"""A hosted guard with the interface of a ``GradScaler``, which frameworks call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard.hosted import HostedGuard
from halfguard.step.parameters import has_gradients


class GuardScaler(torch.amp.GradScaler):
    """A hosted guard with the interface of ``torch.amp.GradScaler``, for frameworks that need a scaler.

    Frameworks create the scaler before the model, so call ``bind`` once the guard exists. A state that was
    loaded before ``bind`` is then passed to the guard.
    """

    guard: HostedGuard | None

    def __init__(self, guard: HostedGuard | None = None) -> None:
        # Not torch's: all state is that of the guard's scaler.
        self.guard = None
        self._loaded: dict[str, Any] = {}
        self._stepped = False  # since the last update()
        if guard is not None:
            self.bind(guard)

    def bind(self, guard: HostedGuard) -> None:
        """Connect this scaler to a guard."""
        self.guard = guard
        if self._loaded:
            state, self._loaded = self._loaded, {}
            guard.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        # What is not here is torch's own state, which getters and private callers read.
        guard = vars(self).get("guard")
        if guard is None:
            raise AttributeError(
                f"This GuardScaler has no attribute {name} because it has no guard yet."
            )
        return getattr(guard.scaler, name)

    def __getstate__(self) -> dict[str, Any]:
        # For a copy in another process: it has the state, and waits for a guard of its own.
        return {"guard": None, "_loaded": self.state_dict(), "_stepped": False}

    @property
    def _bound(self) -> HostedGuard:
        if self.guard is None:
            raise UsageError(
                "This GuardScaler has no guard yet.",
                cure="Before the first step, call scaler.bind(halfguard.HostedGuard(model, optimizer, "
                "config)).",
            )
        return self.guard

    def scale(self, outputs: Any) -> Any:
        """Scale one loss, or each loss in a list or tuple; see ``HostedGuard.scale``.

        A tensor with one loss per sample is scaled elementwise, as in torch. The guard records the mean of
        its finite values.
        """
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(item) for item in outputs)
        if not isinstance(outputs, Tensor) or outputs.numel() == 1:
            return self._bound.scale(outputs)
        finite = outputs.isfinite()  # a host may leave out the others before its backward pass
        mean = torch.where(finite, outputs, 0.0).sum() / finite.sum()
        self._bound.scale(mean)
        scale = self._bound.scaler._get_scale_async()
        return outputs if scale is None else outputs * scale.to(outputs.device)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale and measure the gradients of an optimizer. An optimizer without gradients is ignored."""
        if has_gradients(optimizer):
            self._bound.unscale(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Step the optimizer if the guard accepts the update. ``guard.last`` is the outcome."""
        if any(value is not None for value in (*args, *kwargs.values())):
            raise UsageError(
                "GuardScaler.step() accepts neither a closure nor arguments for the optimizer.",
                cure="Compute the loss first, and use an optimizer that steps once per backward pass.",
            )
        if self._makes_state(optimizer):
            optimizer.step()
            return
        self._bound.apply(optimizer)
        self._stepped = True

    def _makes_state(self, optimizer: Optimizer) -> bool:
        """Return whether this step only makes an optimizer's state, so that a checkpoint can be read into it.

        torch's distributed checkpoints do that for a fresh optimizer, with gradients and rates of 0.
        """
        if optimizer.state or (self.guard is not None and self.guard.has_losses):
            return False
        return all(group.get("lr", 1.0) == 0 for group in optimizer.param_groups)

    @property
    def _device(self) -> str:  # type: ignore[override]
        return "cpu" if self.guard is None else self.guard.scaler._device

    def _lazy_init_scale_growth_tracker(self, _device: torch.device) -> None:
        """Make nothing: the guard's scaler has its state. Accelerate calls this after loading one."""

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Make ``get_scale`` return the scale of the next step, or set it to ``new_scale``."""
        self._stepped = False
        if new_scale is not None:
            self._bound.scaler.update(new_scale)

    def get_scale(self) -> float:
        """Return the loss scale, which is read from the device.

        Between ``step`` and ``update``, this is still the scale of the step. Training loops compare the
        scale before and after ``update`` to decide whether to step the scheduler.
        """
        if self.guard is None:
            return float(self._loaded.get("scale", 1.0))
        if self._stepped and self.guard.last is not None and self.guard.window_has_stepped:
            return self.guard.last.scale
        return self.guard.scaler.get_scale()

    def is_enabled(self) -> bool:
        """Return True. Even in BF16, where the scale is 1, the guard checks every step."""
        return True

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale increases."""
        self._bound.scaler.set_growth_factor(new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale decreases."""
        self._bound.scaler.set_backoff_factor(new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of applied steps after which the scale increases."""
        self._bound.scaler.set_growth_interval(new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard, or the loaded state if there is no guard yet."""
        return dict(self._loaded) if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of a guard or of torch's ``GradScaler``. Before ``bind``, keep it for the guard."""
        if self.guard is None:
            self._loaded = dict(state_dict)
        else:
            self.guard.load_state_dict(state_dict)
