"""A hosted guard in the shape of a ``GradScaler``, which is what frameworks talk to."""

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
    """A hosted guard in the shape of ``torch.amp.GradScaler``, for a framework that asks for one.

    Frameworks make scalers before models: ``bind`` it to its guard when there is one. A state that is loaded
    before is handed to the guard then.
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
        """Serve this guard from now on."""
        self.guard = guard
        if self._loaded:
            state, self._loaded = self._loaded, {}
            guard.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        # What is not here is torch's own state, which getters and private callers read.
        guard = vars(self).get("guard")
        if guard is None:
            raise AttributeError(f"This GuardScaler has no guard yet, so it has no {name}.")
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
        """Scale a loss, or each of several; see ``HostedGuard.scale``.

        Losses of single samples are scaled one by one, as torch does; the guard notes the mean of those
        that are finite.
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
        """Unscale and measure; leave out an optimizer without gradients, of which a host may not know."""
        if has_gradients(optimizer):
            self._bound.unscale(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Step if the update may happen. ``guard.last`` is the outcome."""
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
        """Show the new scale, which ``step`` has decided, or set it to ``new_scale``."""
        self._stepped = False
        if new_scale is not None:
            self._bound.scaler.update(new_scale)

    def get_scale(self) -> float:
        """Return the loss scale. This reads the device.

        Between ``step`` and ``update`` it is that of the step: loops compare it before and after ``update``,
        to hold their scheduler if it fell.
        """
        if self.guard is None:
            return float(self._loaded.get("scale", 1.0))
        if self._stepped and self.guard.last is not None and self.guard.window_has_stepped:
            return self.guard.last.scale
        return self.guard.scaler.get_scale()

    def is_enabled(self) -> bool:
        """Return True: also in BF16, where the scale is 1, the guard decides about every step."""
        return True

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._bound.scaler.set_growth_factor(new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale falls."""
        self._bound.scaler.set_backoff_factor(new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of applied steps after which the scale grows."""
        self._bound.scaler.set_growth_interval(new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard, or the state that waits for it."""
        return dict(self._loaded) if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of a guard or of torch's scaler, now or as soon as there is a guard."""
        if self.guard is None:
            self._loaded = dict(state_dict)
        else:
            self.guard.load_state_dict(state_dict)
