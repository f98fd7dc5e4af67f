"""FP32 master weights: the optimizer updates FP32 copies, the half model gets them rounded.

A half weight of 1 has its neighbours 2**-11 below and 2**-10 above: an update of 1e-4 is rounded
away, at every step, for ever. An FP32 master of 1 resolves 6e-8, so that small updates add up there
until they amount to a step of the half weight. The one law of this module is::

    half == master.to(half.dtype)        after construction, every step and every load

It also makes a skip on the device safe: copying back masters that a fused optimizer left alone
writes the bits that are there already.

Gradients move the other way when somebody looks. ``param_groups[i]["params"]`` holds the masters,
and iterating over it first moves the gradients of the half parameters into them. Whoever reads
gradients through the optimizer (torch's GradScaler, clipping, the inner optimizer itself) therefore
finds them there, in FP32. No backward hook is involved: it would fire before DDP has averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.precision._pairs import Pair, clear, collect, follow_outside_writes, write_back
from halfguard.precision.modes import HALF_DTYPES


class _Masters(list[Tensor]):
    """The parameters of one group; their gradients arrive when they are iterated over."""

    def __init__(self, params: list[Tensor], pairs: list[Pair]) -> None:
        super().__init__(params)
        self.pairs = pairs

    def __iter__(self) -> Iterator[Tensor]:
        collect(self.pairs)
        return super().__iter__()


class MasterWeights(Optimizer):
    """An optimizer over half parameters that keeps and updates FP32 masters of them.

    ``optimizer`` is any torch optimizer built over the model's own parameters; from now on it sees
    masters in place of half parameters, and FP32 parameters as they are. Use this object wherever
    the optimizer was used: it shares its ``param_groups``, ``state`` and ``defaults``.

    Clip ``master_parameters()``, not ``model.parameters()``: the gradients of the model are zero
    once they have been moved, and clipping zeros raises no error. Clear gradients with
    ``zero_grad()`` of this object or of the model, in both cases to None as torch does by default.

    Weights that are changed from outside between steps (``model.load_state_dict``, an in-place
    operation under ``no_grad``) are followed at the next step; a write through ``.data`` is not
    seen.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, MasterWeights | torch.optim.LBFGS):
            raise UsageError(
                f"MasterWeights was given {type(optimizer).__name__}, which cannot be wrapped: "
                "it holds on to parameters of its own.",
                cure="Give it a plain optimizer such as torch.optim.AdamW(model.parameters()).",
            )
        self.inner = optimizer
        # Only hooks and bookkeeping: the base constructor would build groups of its own.
        super().__setstate__({})
        for group in optimizer.param_groups:
            self._swap_in(group)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's groups, with masters for parameters."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state, by master."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.inner.defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tell a GradScaler whether the inner optimizer is fused, and skips on the device."""
        return getattr(self.inner, "_step_supports_amp_scaling", False)

    def master_parameters(self) -> list[Tensor]:
        """Return what the optimizer updates, with FP32 gradients: the thing to clip."""
        return [master for group in self.param_groups for master in group["params"]]

    def masters(self) -> dict[Tensor, Tensor]:
        """Return the master of every half parameter, by that parameter."""
        return {pair.half: pair.master for pair in self._pairs()}

    def collect_gradients(self) -> None:
        """Move the gradients of half parameters into their masters, adding to what is there.

        A second call finds nothing to move. Called after every micro-batch it sums them in FP32,
        where half would round or overflow. Under DDP's ``no_sync`` call it only after the last one:
        what has moved is not averaged any more.
        """
        collect(self._pairs())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of masters and half parameters alike."""
        clear(self._pairs())
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collect gradients, step on the masters, and round them into the half parameters."""
        pairs = self._pairs()
        follow_outside_writes(pairs)
        if closure is None:
            collect(pairs)
        lent = {k: getattr(self, k) for k in ("grad_scale", "found_inf") if hasattr(self, k)}
        vars(self.inner).update(lent)  # a GradScaler sets them on the optimizer that it was given
        try:
            # A closure's gradients are collected when the inner optimizer iterates over masters.
            loss: Any = self.inner.step(closure)
        finally:
            for name in lent:
                delattr(self.inner, name)
        write_back(pairs)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; its half parameters get masters."""
        known = self.masters()
        self.inner.add_param_group(param_group)
        group = self.param_groups[-1]
        if any(param in known for param in group["params"]):
            self.param_groups.pop()
            raise UsageError(
                "add_param_group() was given a half parameter that has a master already, and would "
                "be updated twice. No group was added.",
                cure="Put every parameter into one group only.",
            )
        self._swap_in(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state, with the masters by parameter index under ``"masters"``."""
        masters = {i: pair.master.detach() for i, pair in self._by_index().items()}
        return {**self.inner.state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state, masters and half parameters exactly as they were saved."""
        pairs, saved = self._by_index(), state_dict.get("masters", {})
        if _shapes(saved) != _shapes({i: pair.master for i, pair in pairs.items()}):
            raise UsageError(
                f"the optimizer state holds {len(saved)} master weights that do not fit the "
                f"{len(pairs)} of this MasterWeights: it was saved by another optimizer or for "
                "another model. Nothing was loaded.",
                cure="To go on from a plain optimizer, load its state first and wrap it then: "
                "optimizer.load_state_dict(state); MasterWeights(optimizer).",
            )
        self.inner.load_state_dict({k: v for k, v in state_dict.items() if k != "masters"})
        with torch.no_grad():
            for i, pair in pairs.items():
                pair.master.copy_(saved[i])
        write_back(list(pairs.values()))

    def _pairs(self) -> list[Pair]:
        return [pair for group in self.param_groups for pair in group["params"].pairs]

    def _by_index(self) -> dict[int, Pair]:
        """Pairs by the position that torch gives their parameter in a state dict."""
        by_master = {pair.master: pair for pair in self._pairs()}
        return {i: by_master[m] for i, m in enumerate(self.master_parameters()) if m in by_master}

    def _swap_in(self, group: dict[str, Any]) -> None:
        params, pairs = list(group["params"]), []
        for i, param in enumerate(params):
            if param.dtype in HALF_DTYPES:
                pairs.append(Pair.of(param))
                params[i] = pairs[-1].master
                if param in self.state:
                    self.state[params[i]] = _widened(self.state.pop(param))
        group["params"] = _Masters(params, pairs)


def _widened(state: dict[str, Any]) -> dict[str, Any]:
    def widen(value: Any) -> Any:
        half = isinstance(value, Tensor) and value.dtype in HALF_DTYPES
        return value.float() if half else value

    return {key: widen(value) for key, value in state.items()}


def _shapes(tensors: dict[int, Tensor]) -> dict[int, torch.Size]:
    return {i: tensor.shape for i, tensor in tensors.items()}
