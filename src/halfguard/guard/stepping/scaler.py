"""A loss scaler that lowers the scale only for overflows that the scale caused.

torch halves the scale whenever a gradient is not finite. That is right if the *scaled* gradients left the
range of half. It is wrong if the loss itself was already NaN or infinite: no scale cures that, and halving
continues until the scale is 0, from which nothing recovers. So this scaler looks at each loss before it is
scaled. If gradients are not finite although every loss was, the scale falls; otherwise the step is skipped
and the scale stays. The scale always stays within [floor, ceiling].

Nothing here reads the device. ``last_step_applied`` is a tensor, and is right for fused optimizers too, which
torch calls even for a step that they then skip on the device.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state

from halfguard.dist.collectives import AsyncSum
from halfguard.errors import UsageError
from halfguard.formats import FP16
from halfguard.numerics.tensor_rows import to_device
from halfguard.step.nested import tensors_in
from halfguard.step.parameters import parameters_of

CEILING = 2.0**24


def default_device_type() -> str:
    """Return the accelerator of this machine, or the CPU."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device.type if device is not None else "cpu"


def warn_of_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Warn of float16 parameters: torch raises in ``unscale_``, but fused optimizers do not call it."""
    halves = sum(p.dtype is torch.float16 for p in parameters_of(optimizer))
    if halves:
        warnings.warn(
            f"{halves} of the optimizer's parameters are float16, so small updates to them are lost. Wrap "
            "the optimizer in halfguard.MasterWeights, or call halfguard.upcast_trainable(model).",
            stacklevel=3,
        )


def check_device(device: str) -> None:
    """Raise if the device is missing; torch would only warn and disable the scaler."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "GradScaler('cuda') was requested, but this machine has no CUDA device.",
            cure="Omit the device to use the default of this machine, or pass enabled=False for FP32.",
        )


def check_bounds(floor: float, init: float, ceiling: float) -> None:
    """Raise if the initial scale is outside its bounds."""
    if not 0 < floor <= init <= ceiling:
        raise UsageError(
            f"GradScaler needs 0 < floor <= init_scale <= ceiling; got {floor:g}, {init:g}, {ceiling:g}."
        )


def check_changes(growth: float, backoff: float, interval: int) -> None:
    """Raise if a factor does not grow or shrink the scale, or the interval is below 1."""
    if not growth > 1 or not 0 < backoff < 1 or interval < 1:
        raise UsageError(
            "GradScaler needs growth_factor > 1, 0 < backoff_factor < 1 and growth_interval >= 1; "
            f"got {growth}, {backoff} and {interval}."
        )


class GradScaler(torch.amp.GradScaler):
    """Drop-in replacement for ``torch.amp.GradScaler``.

    The scale stays between ``floor`` and ``ceiling``. With a process group, the ranks agree in ``update`` on
    whether the scale caused an overflow. This takes one small all-reduce and keeps the scales of all ranks
    equal.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        floor: float = FP16.smallest_normal,
        ceiling: float = CEILING,
    ) -> None:
        device = device or default_device_type()
        if enabled:
            check_device(device)
            check_bounds(floor, init_scale, ceiling)
            check_changes(growth_factor, backoff_factor, growth_interval)
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._floor, self._ceiling = floor, ceiling
        self._losses: list[Tensor] = []
        self._agreed_losses: list[Tensor] = []
        self._refused: list[Tensor] = []
        self._last_refused: Tensor | None = None
        self._is_repeating = False
        # The last loss that was scaled, detached.
        self.last_loss = torch.full((), torch.nan, dtype=torch.float32)

    # -- did the scale cause the overflow?

    def scale(self, outputs: Any) -> Any:
        """Scale a loss. If it is not finite, the scale did not cause the overflow and is not lowered."""
        if self._enabled:
            outputs = _materialize(outputs)
            for loss in tensors_in(outputs):
                self.last_loss = loss.detach()
                self.note_loss(self.last_loss)
        return super().scale(outputs)

    def note_loss(self, value: Tensor) -> None:
        """Record a loss of this step. If it is not finite, an overflow does not lower the scale."""
        # Zero times a finite value is 0; the plain sum of finite values may overflow.
        self._losses.append(value if value.dim() == 0 else value.mul(0).sum())

    def abandon_step(self) -> None:
        """Discard a step that will not be completed. The scale does not change."""
        self._losses, self._agreed_losses, self._refused = [], [], []
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)

    def forget_unstepped(self) -> None:
        """Make the next ``update`` ignore optimizers that were unscaled but not stepped."""
        states = self._per_optimizer_states
        for key in [k for k, state in states.items() if state["stage"] is not OptState.STEPPED]:
            del states[key]

    def excuse_scale(self) -> None:
        """Keep the next ``update`` from lowering the scale, because the step also failed in FP32."""
        for state in self._per_optimizer_states.values():
            if "overflow" in state:
                state["overflow"] = torch.zeros_like(state["overflow"])

    def note_agreed_loss(self, value: Tensor) -> None:
        """Record a value that all ranks agreed on, instead of each rank's own value."""
        self._agreed_losses.append(value)

    def found_inf(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Return a device tensor: 1.0 if an unscaled gradient of this optimizer is not finite, else 0.0."""
        found = list(self._found_inf_per_device(optimizer).values())
        if not found:
            raise UsageError(
                "No gradient reached the optimizer: all of its parameters have grad=None.",
                cure="Either the loss does not depend on these parameters (it may have been rebuilt from a "
                "number or detached), or the optimizer was created before model.to(device) replaced "
                "them.",
            )
        return found[0] if len(found) == 1 else _any(found)

    def override_found_inf(
        self,
        optimizer: torch.optim.Optimizer,
        refused: Tensor,
        *,
        overflow: Tensor | None = None,
        known: bool | None = None,
    ) -> None:
        """Use ``refused`` (0.0 or 1.0, on the device) instead of found_inf to decide the next step.

        The scale is updated from ``overflow``, or from found_inf if ``overflow`` is None. If you have
        already read ``refused`` on the host, pass its value as ``known`` to avoid a second read.
        """
        state = self._per_optimizer_states[id(optimizer)]
        state["known"] = known
        state["overflow"] = self.found_inf(optimizer) if overflow is None else overflow
        # A single entry for all devices: fused optimizers compare the sum of entries with 1.
        state["found_inf_per_device"] = {refused.device: refused}

    @property
    def last_step_applied(self) -> Tensor | None:
        """A device tensor that is True if every optimizer stepped since the last update applied its step."""
        return None if self._last_refused is None else self._last_refused == 0

    # -- methods of torch's scaler

    def get_scale(self) -> float:
        """Return the scale. While a step is repeated in FP32, the scale is 1."""
        return 1.0 if self._is_repeating else super().get_scale()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Return a context in which a step is repeated without a loss scale."""
        self._is_repeating = True
        try:
            yield
        finally:
            self._is_repeating = False

    def is_unscaled(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether ``unscale_`` was called for an optimizer that has not stepped since."""
        state = self._per_optimizer_states.get(id(optimizer))
        return state is not None and state["stage"] is OptState.UNSCALED

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale. Raise an error with a fix if parameters are FP16."""
        collect = getattr(optimizer, "collect_gradients", None)  # hg.MasterWeights
        if collect is not None:
            collect()
        try:
            super().unscale_(optimizer)
        except ValueError as error:
            if "FP16 gradients" not in str(error):
                raise
            raise UsageError(
                "The optimizer has float16 parameters. Their gradients are not unscaled, because "
                "small updates to float16 parameters are lost (1 - 1e-4 is 1 in FP16).",
                cure="For adapters on a frozen base, call halfguard.upcast_trainable(model) before creating "
                "the optimizer. To train FP16 weights, wrap the optimizer: "
                "halfguard.MasterWeights(optimizer).",
            ) from error

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        # torch moves scale and flags to the host without waiting, and reads them before they arrive. So
        # they are moved here if the loss, or some of the parameters, lie on the host.
        loss_on_host = inv_scale.device.type == "cpu"
        if not loss_on_host and any(p.device.type == "cpu" for p in parameters_of(optimizer)):
            inv_scale, found_inf = inv_scale.cpu(), found_inf.cpu()
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if loss_on_host:
            return {device: flag.cpu() for device, flag in found.items()}
        return found

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step the optimizer unless a gradient is not finite, and update ``last_step_applied``."""
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        state = self._per_optimizer_states[id(optimizer)]
        if state.get("known"):  # not even called, as torch calls a fused one: hosts count the calls
            state["stage"] = OptState.STEPPED
            self._note_refusal(optimizer)
            return None
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if state["stage"] is OptState.READY:
            if fused:
                warn_of_half_parameters(optimizer)
            if not fused or getattr(optimizer, "collect_gradients", None) is not None:
                self.unscale_(optimizer)
        if state["stage"] is OptState.UNSCALED:
            self.found_inf(optimizer)  # raises if there is no gradient at all
        result = super().step(optimizer, *args, **kwargs)
        self._note_refusal(optimizer)
        return result

    def _note_refusal(self, optimizer: torch.optim.Optimizer) -> None:
        self._refused.append(self.found_inf(optimizer))
        self._last_refused = _any(self._refused)

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        known = optimizer_state.get("known")
        if known is None:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        return None if known else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale for the next step. It is lowered only if it caused an overflow."""
        if not self._enabled:
            return
        if new_scale is not None:
            super().update(new_scale)
        else:
            self._adapt()
        scale, _ = self._check_scale_growth_tracker("update")
        scale.clamp_(self._floor, self._ceiling)
        self.abandon_step()

    def _adapt(self) -> None:
        scale, tracker = self._check_scale_growth_tracker("update")
        states = list(self._per_optimizer_states.values())
        refused = [found for state in states for found in state["found_inf_per_device"].values()]
        if not refused:
            raise UsageError(
                "update() was called, but no optimizer was stepped or unscaled since the last update().",
                cure="Call scaler.step(optimizer) first, even for a step that you expect to be skipped.",
            )
        if all(state.get("known") is False for state in states):
            # Applied, so there was no overflow.
            self._update_scale(scale, tracker, to_device(refused[0], scale.device))
            return
        # Gradients, and so their flags, may lie on other devices than the loss, and so the scale.
        skipped = to_device(_any(refused), scale.device)
        overflow = _any([found for state in states for found in _overflows(state)])
        overflow = to_device(overflow, scale.device)
        backoff = self._scale_overflow(overflow) if self._losses else overflow
        # torch counts every step that does not back off as a success. A skipped step is not one: subtracting
        # one beforehand keeps the count unchanged, and below the growth interval.
        tracker.add_(skipped != backoff, alpha=-1)
        self._update_scale(scale, tracker, backoff)

    def _update_scale(self, scale: Tensor, tracker: Tensor, backoff: Tensor) -> None:
        torch._amp_update_scale_(
            scale,
            tracker,
            backoff,
            self._growth_factor,
            self._backoff_factor,
            self._growth_interval,
        )

    def _scale_overflow(self, overflow: Tensor) -> Tensor:
        """Return the overflow, or 0.0 if a noted loss is not finite: zero times NaN or infinity is NaN."""
        values = [
            to_device(loss, overflow.device, torch.float32)
            for loss in self._agreed_losses or self._losses
        ]
        nothing = (torch.stack(values) if len(values) > 1 else values[0]).mul(0).sum()
        # Each rank has its own loss, but all ranks must lower the scale together.
        nothing = nothing if self._agreed_losses else AsyncSum(nothing).wait()
        return (overflow + nothing).nan_to_num(nan=0.0)

    def restart(self, init_scale: float) -> None:
        """Set the scale to ``init_scale``, as in a new scaler."""
        self._init_scale = init_scale
        if self._scale is not None:
            self._scale.fill_(init_scale)

    def set_bounds(self, floor: float, ceiling: float) -> None:
        """Set ``floor`` and ``ceiling``, and clamp the scale to them."""
        self._init_scale = min(max(self._init_scale, floor), ceiling)
        check_bounds(floor, self._init_scale, ceiling)
        self._floor, self._ceiling = floor, ceiling
        if self._scale is not None:
            self._scale.clamp_(floor, ceiling)

    def finish_round(self, *, open_losses: int) -> Tensor:
        """Compute the scale that follows from the steps so far, and return it without setting it.

        Called when one optimizer steps again before the others have stepped. The last ``open_losses`` losses
        belong to the new step, whose gradients have the current scale.
        """
        scale, _ = self._check_scale_growth_tracker("finish_round")
        used = scale.clone()
        first_open = len(self._losses) - open_losses
        self._losses, still_open = self._losses[:first_open], self._losses[first_open:]
        self.update()
        self._losses = still_open
        following = scale.clone()
        scale.copy_(used)
        return following

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval, and keep the count of successful steps below it."""
        super().set_growth_interval(new_interval)
        if self._growth_tracker is not None:
            self._growth_tracker.clamp_(max=new_interval - 1)

    # -- state, compatible with torch's scaler in both directions

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of torch's ``GradScaler``. Keep ``floor`` and ``ceiling``."""
        super().load_state_dict(state_dict)
        if not self._enabled:
            return
        # torch's scaler may have saved a scale of 0, from which nothing recovers.
        self._init_scale = min(max(self._init_scale, self._floor), self._ceiling)
        if self._scale is not None:
            self._scale.clamp_(self._floor, self._ceiling)


def _overflows(state: dict[str, Any]) -> list[Tensor]:
    """Return the overflow flags of an optimizer, also if ``override_found_inf`` decided its step."""
    return (
        [state["overflow"]] if "overflow" in state else list(state["found_inf_per_device"].values())
    )


def _any(flags: list[Tensor]) -> Tensor:
    if len(flags) == 1:
        return flags[0]
    first = flags[0].device
    return torch.stack([to_device(flag, first) for flag in flags]).amax()


def _materialize(outputs: Any) -> Any:
    """Return the outputs with lists in place of iterators, which can be read only once."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, list | tuple):
        return type(outputs)(_materialize(item) for item in outputs)
    return [_materialize(item) for item in outputs] if isinstance(outputs, Iterable) else outputs
