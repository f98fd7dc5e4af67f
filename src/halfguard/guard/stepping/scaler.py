"""A loss scale that knows when it is to blame: torch's GradScaler, extended at its seams, all on the device.

torch halves the scale whenever a gradient is not finite. That is right when the *scaled* gradients left the
range of half. It is wrong when the loss itself was already NaN or infinite: no scale cures that, and halving
goes on until the scale is 0, from which nothing recovers. So this scaler looks at each loss before it scales
it. Gradients that are not finite although every loss was are the scale's business; else the step is skipped
and the scale stays. Whatever happens, it stays within [floor, ceiling].

Nothing here reads the device: ``last_step_applied`` is a tensor, and is right for fused optimizers, which
torch calls even for a step that they then skip by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state

from halfguard.dist.collectives import Sum
from halfguard.errors import UsageError
from halfguard.guard.stepping.scaler_checks import (
    check_bounds,
    check_changes,
    check_device,
    default_device_type,
    warn_of_half_parameters,
)


class GradScaler(torch.amp.GradScaler):
    """Drop-in for ``torch.amp.GradScaler``, accepted wherever one is.

    ``floor`` and ``ceiling`` bound the scale. It falls at the ``backoff_after``-th overflow; overflows are
    counted anew after every applied step (``refill_on="applied"``: only overflows in a row count) or after
    every growth of the scale (``refill_on="growth"``: overflows of a whole growth interval count).

    Where there is a process group, ranks ``agree`` in ``update`` whether the scale is to blame: one small
    sum, without which the scales of a DDP job drift apart. Ranks that train models of their own say False.
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
        floor: float = 1.0,
        ceiling: float = 2.0**24,
        backoff_after: int = 1,
        refill_on: Literal["applied", "growth"] = "applied",
        agree: bool = True,
    ) -> None:
        device = device or default_device_type()
        if enabled:
            check_device(device)
            check_bounds(floor, init_scale, ceiling)
            check_changes(growth_factor, backoff_factor, growth_interval, backoff_after, refill_on)
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._floor, self._ceiling = floor, ceiling
        self._backoff_after, self._refill_on = backoff_after, refill_on
        self._overflows_left: Tensor | int = backoff_after  # a tensor once there is a device
        self._witnesses: list[Tensor] = []
        self._agreed: list[Tensor] = []
        self._agree = agree
        self._refused: list[Tensor] = []
        self._last_refused: Tensor | None = None
        self.last_loss = torch.full(
            (), torch.nan
        )  # the latest one that was scaled, without its graph

    # -- what decides whether the scale is to blame

    def scale(self, outputs: Any) -> Any:
        """Scale a loss, and remember it: if it is not finite, the scale is not to blame."""
        if self._enabled:
            outputs = _held(outputs)
            for loss in _tensors(outputs):
                self.last_loss = loss.detach()
                self.witness(self.last_loss)
        return super().scale(outputs)

    def witness(self, value: Tensor) -> None:
        """Name a value of this step that must be finite for the scale to be blamed for an overflow."""
        # Zero times a finite value is 0; the plain sum of finite values may overflow.
        self._witnesses.append(value if value.dim() == 0 else value.mul(0).sum())

    def forget_witnesses(self) -> None:
        """Take back what was named: its step is given up."""
        self._witnesses, self._agreed = [], []

    def testify(self, value: Tensor) -> None:
        """The same for a value that all ranks have agreed on; it stands for what each saw by itself."""
        self._agreed.append(value)

    def found_inf(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """1.0 on the device where an unscaled gradient of this optimizer is not finite, else 0.0."""
        found = list(self._found_inf_per_device(optimizer).values())
        if not found:
            raise UsageError(
                "No gradient reached the optimizer: every one of its parameters has grad=None.",
                cure="Either the loss does not depend on them (was it rebuilt from a number, or "
                "detached?), or the optimizer was built before model.to(device) replaced them.",
            )
        return found[0] if len(found) == 1 else _any(found)

    def refuse(
        self,
        optimizer: torch.optim.Optimizer,
        refused: Tensor,
        *,
        overflow: Tensor | None = None,
        known: bool | None = None,
    ) -> None:
        """Let ``refused`` (0.0 or 1.0, on the device) decide the coming step instead of found_inf.

        ``overflow`` is what counts for the scale, found_inf if nothing else is known of other ranks; the
        refusal itself does not. A caller who has read ``refused`` passes it as ``known``, so that it is
        not read a second time.
        """
        state = self._per_optimizer_states[id(optimizer)]
        state["known"] = known
        state["overflow"] = self.found_inf(optimizer) if overflow is None else overflow
        # One entry, whatever the number of devices: fused optimizers test a sum of entries for 1.
        state["found_inf_per_device"] = {refused.device: refused}

    @property
    def last_step_applied(self) -> Tensor | None:
        """Whether the latest step, by all optimizers since the last update, was applied; on the device."""
        return None if self._last_refused is None else self._last_refused == 0

    # -- torch's own verbs

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale; FP16 parameters are refused by name of the cure."""
        collect = getattr(optimizer, "collect_gradients", None)  # hg.MasterWeights
        if collect is not None:
            collect()
        try:
            super().unscale_(optimizer)
        except ValueError as error:
            if "FP16 gradients" not in str(error):
                raise
            raise UsageError(
                "The optimizer holds float16 parameters, and small updates to them are lost: "
                "1 - 1e-4 is 1 in half. So their gradients are not unscaled.",
                cure="For adapters over a frozen base call halfguard.upcast_trainable(model) before "
                "building the optimizer; to train FP16 weights wrap it: halfguard.MasterWeights(optimizer).",
            ) from error

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step unless a gradient is not finite; ``last_step_applied`` says, on the device, what happened."""
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        state = self._per_optimizer_states[id(optimizer)]
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if state["stage"] is OptState.READY:
            if fused:
                warn_of_half_parameters(optimizer)
            if not fused or getattr(optimizer, "collect_gradients", None) is not None:
                self.unscale_(optimizer)
        if state["stage"] is OptState.UNSCALED:
            self.found_inf(optimizer)  # says why, if there is no gradient at all
        result = super().step(optimizer, *args, **kwargs)
        self._refused.append(self.found_inf(optimizer))
        self._last_refused = _any(self._refused)
        return result

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
        """Set the scale for the next step: grow, back off where it is to blame, or leave it."""
        if not self._enabled:
            return
        if new_scale is not None:
            super().update(new_scale)
        else:
            self._adapt()
        scale, _ = self._check_scale_growth_tracker("update")
        scale.clamp_(self._floor, self._ceiling)
        self._witnesses, self._agreed, self._refused = [], [], []
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)

    def _adapt(self) -> None:
        scale, tracker = self._check_scale_growth_tracker("update")
        states = list(self._per_optimizer_states.values())
        refused = [found for state in states for found in state["found_inf_per_device"].values()]
        if not refused:
            raise UsageError(
                "update() was called, but no optimizer was stepped or unscaled since the last one.",
                cure="Call scaler.step(optimizer), also for a step that you expect to be skipped.",
            )
        skipped = _any(refused)
        overflow = _any([found for state in states for found in _overflows(state)])
        blame = self._blame(overflow) if self._witnesses else overflow
        backoff = self._spend(blame, tracker)
        # torch counts every step that does not back off as a success. A skipped one is none: taking one
        # off beforehand leaves the count as it was, and below the growth interval.
        tracker.add_(skipped != backoff, alpha=-1)
        torch._amp_update_scale_(
            scale,
            tracker,
            backoff,
            self._growth_factor,
            self._backoff_factor,
            self._growth_interval,
        )
        self._refill(skipped, tracker)

    def _blame(self, overflow: Tensor) -> Tensor:
        """The overflow, or 0.0 if a witness is not finite: zero times NaN or infinity is NaN."""
        values = [
            witness.to(overflow.device, torch.float32, non_blocking=True)
            for witness in self._agreed or self._witnesses
        ]
        nothing = (torch.stack(values) if len(values) > 1 else values[0]).mul(0).sum()
        # A loss is one rank's own. Ranks that blame the scale must do so together.
        nothing = Sum(nothing).join() if self._agree and not self._agreed else nothing
        return (overflow + nothing).nan_to_num(nan=0.0)

    def _spend(self, blame: Tensor, tracker: Tensor) -> Tensor:
        """1.0 if this overflow is the one that lowers the scale."""
        if self._backoff_after == 1:
            return blame
        if not isinstance(self._overflows_left, Tensor):
            self._overflows_left = torch.full_like(blame, float(self._overflows_left))
        self._overflows_left.sub_(blame).clamp_(min=0)
        # An overflow that is let pass still ends the run of successes that growth waits for.
        tracker.mul_((1 - blame).to(torch.int32))
        return blame * (self._overflows_left == 0)

    def _refill(self, skipped: Tensor, tracker: Tensor) -> None:
        if self._backoff_after == 1:
            return
        # torch sets its tracker to zero when it grows the scale, and we took one off for a skipped step.
        due = 1 - skipped if self._refill_on == "applied" else (1 - skipped) * (tracker == 0)
        left = cast(Tensor, self._overflows_left)
        left.copy_(torch.where(due > 0, float(self._backoff_after), left))

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval; the count of successes stays below it, or torch would never grow again."""
        super().set_growth_interval(new_interval)
        if self._growth_tracker is not None:
            self._growth_tracker.clamp_(max=new_interval - 1)

    # -- state, readable by torch's scaler and reading torch's

    def state_dict(self) -> dict[str, Any]:
        """torch's five entries, and what is left of the allowance of overflows."""
        state = super().state_dict()
        if not self._enabled:
            return state
        return state | {"overflows_left": int(self._overflows_left)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ours or of torch's scaler; bounds are those that this scaler was made with."""
        super().load_state_dict(state_dict)
        if not self._enabled:
            return
        left = state_dict.get("overflows_left", self._backoff_after)
        self._overflows_left = min(left, self._backoff_after)
        # torch's scaler may have saved a scale of 0, from which nothing recovers.
        self._init_scale = min(max(self._init_scale, self._floor), self._ceiling)
        if self._scale is not None:
            self._scale.clamp_(self._floor, self._ceiling)


def _overflows(state: dict[str, Any]) -> list[Tensor]:
    """Whether an optimizer's gradients were not finite, also where something else decided its step."""
    return (
        [state["overflow"]] if "overflow" in state else list(state["found_inf_per_device"].values())
    )


def _any(flags: list[Tensor]) -> Tensor:
    if len(flags) == 1:
        return flags[0]
    first = flags[0].device
    return torch.stack([flag.to(first, non_blocking=True) for flag in flags]).amax()


def _held(outputs: Any) -> Any:
    """The same, with lists in place of iterators, which can be looked at only once."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, list | tuple):
        return type(outputs)(_held(item) for item in outputs)
    return [_held(item) for item in outputs] if isinstance(outputs, Iterable) else outputs


def _tensors(outputs: Any) -> Iterable[Tensor]:
    if isinstance(outputs, Tensor):
        return (outputs,)
    if not isinstance(outputs, Iterable):
        return ()  # torch says what is wrong with it
    return (tensor for item in outputs for tensor in _tensors(item))
