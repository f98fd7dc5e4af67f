"""FP32 master weights: the optimizer updates FP32 copies, and the half model gets them rounded.

A half weight of 1 has its neighbours 2**-11 below and 2**-10 above, so an update of 1e-4 is rounded
away at every step. An FP32 master of 1 resolves 6e-8: small updates add up there until they are
large enough to change the half weight. The invariant of this module is::

    half == master.to(half.dtype)        after construction, every step and every load

It also makes a skip on the device safe: if a fused optimizer leaves the masters unchanged, copying
them back writes the same bits again.

Gradients move in the other direction when they are read. ``param_groups[i]["params"]`` holds the
masters, and iterating over it first moves the gradients of the half parameters to them. So code that
reads gradients through the optimizer (torch's GradScaler, clipping, the inner optimizer itself)
finds them there, in FP32. There is no backward hook: it would run before DDP has averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.precision.modes import HALF_DTYPES
from halfguard.precision.upcast import cast_to_fp32

# Pairs of a half parameter and its FP32 master, and functions that move data between them.
#
# Every function here takes the whole list and passes it to torch in a fixed number of operations,
# without waiting for the device. Changes since the last call are detected from the identity and the
# version counter of tensors, which are plain Python values.


@dataclass(slots=True)
class MasterPair:
    """A half parameter, its master, and the state in which halfguard last left the half."""

    half: Tensor
    master: Tensor
    half_version: int
    """Version of ``half`` when it last was the rounded master."""
    moved: Tensor | None = None
    """The half gradient that was moved to the master and then zeroed."""
    moved_version: int = 0
    """The version of that gradient after it was zeroed."""

    @classmethod
    def of(cls, half: Tensor) -> MasterPair:
        """Copy a half parameter to FP32, which is exact."""
        return cls(half, torch.nn.Parameter(half.detach().float()), half._version)

    def new_gradient(self) -> Tensor | None:
        """Return the gradient of the last backward pass, or None if there is no new one.

        A half gradient that was moved is zeroed and stays assigned. If it is still there, more
        micro-batches may have been added to it. If it is None or another tensor, the user has cleared
        it meanwhile, perhaps with ``model.zero_grad()``, and the master's gradient is cleared as well.
        """
        grad = self.half.grad
        if grad is not None and grad is self.moved:
            return None if grad._version == self.moved_version else grad
        if self.moved is not None:
            self.moved = self.master.grad = None
        return grad


@torch.no_grad()
def collect_gradients(pairs: Sequence[MasterPair]) -> None:
    """Move gradients from halves to masters; infinities and NaN are kept."""
    pending = [(pair, grad) for pair in pairs if (grad := pair.new_gradient()) is not None]
    if not pending:
        return
    grads = [_dense(grad) for _, grad in pending]
    # Any out-of-place operation on the list allocates FP32 tensors of the right shapes and layouts
    # in one call, where empty_like needs one call per parameter. The values are overwritten.
    wide = torch._foreach_neg([pair.master for pair, _ in pending])
    torch._foreach_copy_(wide, grads)
    torch._foreach_zero_(grads)
    sums: list[Tensor] = []
    addends: list[Tensor] = []
    for (pair, grad), widened in zip(pending, wide, strict=True):
        pair.moved, pair.moved_version = grad, grad._version
        if pair.master.grad is None:
            pair.master.grad = widened
        else:
            sums.append(pair.master.grad)
            addends.append(widened)
    if sums:
        torch._foreach_add_(sums, addends)


@torch.no_grad()
def write_back(pairs: Sequence[MasterPair]) -> None:
    """Round the masters into the halves."""
    if not pairs:
        return
    torch._foreach_copy_([pair.half for pair in pairs], [pair.master for pair in pairs])
    for pair in pairs:
        pair.half_version = pair.half._version


@torch.no_grad()
def copy_outside_changes(pairs: Sequence[MasterPair]) -> None:
    """Copy half weights that were changed from outside since ``write_back`` to the masters.

    Where a half is still its master rounded (weights swapped for evaluation and back, or loaded after
    the optimizer), the master keeps its full precision.
    """
    for pair in pairs:
        if pair.half._version != pair.half_version:
            same = pair.master.to(pair.half.dtype) == pair.half
            pair.master.copy_(torch.where(same, pair.master, pair.half.float()))
            pair.half_version = pair.half._version


def clear_half_gradients(pairs: Sequence[MasterPair]) -> None:
    """Drop the gradients of the halves, moved or not."""
    for pair in pairs:
        pair.half.grad = pair.moved = None


def _dense(grad: Tensor) -> Tensor:
    if grad.layout is torch.strided:
        return grad
    raise UsageError(
        f"The gradient of a 16-bit parameter of shape {tuple(grad.shape)} is sparse, which master "
        "weights do not support. No gradient was moved.",
        cure="Create the embedding with sparse=False, or keep it in FP32: embedding.float().",
    )


class _Masters(list[Tensor]):
    """The parameters of one group; iterating over them first collects their gradients."""

    def __init__(self, params: list[Tensor], pairs: list[MasterPair]) -> None:
        super().__init__(params)
        self.pairs = pairs

    def __iter__(self) -> Iterator[Tensor]:
        collect_gradients(self.pairs)
        return super().__iter__()


class MasterWeights(Optimizer):
    """Wraps an optimizer so that it updates FP32 master copies of 16-bit parameters.

    ``optimizer`` is any torch optimizer of the model's own parameters. It then updates master weights
    instead of the 16-bit parameters. FP32 parameters are updated directly. Use this object instead of the
    optimizer. Both share their ``param_groups``, ``state`` and ``defaults``.

    Clip ``master_parameters()``, not ``model.parameters()``. The gradients of the model are zero after they
    have been moved to the master weights, and clipping zeros raises no error. To clear gradients, call
    ``zero_grad()`` of this object or of the model, with torch's default ``set_to_none=True``.

    If weights are changed between steps (by ``model.load_state_dict`` or by an in-place operation under
    ``no_grad``), they are copied to the master weights at the next step. Changes through ``.data`` are not
    detected.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, MasterWeights | torch.optim.LBFGS):
            raise UsageError(
                f"MasterWeights was given {type(optimizer).__name__}, which cannot be wrapped because it "
                "keeps its own references to parameters.",
                cure="Pass a plain optimizer such as torch.optim.AdamW(model.parameters()).",
            )
        self.inner = optimizer
        # Only sets up hooks: the base constructor would build its own groups.
        super().__setstate__({})
        for group in optimizer.param_groups:
            self._replace_half_parameters(group)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of the wrapped optimizer, with master weights for 16-bit parameters."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer, keyed by master weight."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the wrapped optimizer."""
        return self.inner.defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True if the inner optimizer is fused and skips steps on the device; read by GradScaler."""
        return getattr(self.inner, "_step_supports_amp_scaling", False)

    def master_parameters(self) -> list[Tensor]:
        """Return the parameters that the optimizer updates, with FP32 gradients. Clip these parameters."""
        return [master for group in self.param_groups for master in group["params"]]

    def masters(self) -> dict[Tensor, Tensor]:
        """Return the master weight of every 16-bit parameter, keyed by the 16-bit parameter."""
        return {pair.half: pair.master for pair in self._pairs()}

    def collect_gradients(self) -> None:
        """Add the gradients of 16-bit parameters to the gradients of their master weights.

        A second call has no effect. If you call this after every micro-batch, gradients are summed in FP32,
        so the sum neither loses small values nor overflows. Under DDP's ``no_sync``, call it only after the
        last micro-batch, because DDP does not average gradients that have been moved.
        """
        collect_gradients(self._pairs())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of master weights and 16-bit parameters."""
        clear_half_gradients(self._pairs())
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collect gradients, update the master weights, and round them to the 16-bit parameters."""
        pairs = self._pairs()
        copy_outside_changes(pairs)
        if closure is None:
            collect_gradients(pairs)
        # A GradScaler sets these on the optimizer it was given; the inner one must have them too.
        from_scaler = {k: getattr(self, k) for k in ("grad_scale", "found_inf") if hasattr(self, k)}
        vars(self.inner).update(from_scaler)
        try:
            # A closure's gradients are collected when the inner optimizer iterates over masters.
            loss: Any = self.inner.step(closure)
        finally:
            for name in from_scaler:
                delattr(self.inner, name)
        write_back(pairs)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, with master weights for its 16-bit parameters."""
        known = self.masters()
        self.inner.add_param_group(param_group)
        group = self.param_groups[-1]
        if any(param in known for param in group["params"]):
            self.param_groups.pop()
            raise UsageError(
                "add_param_group() was given a 16-bit parameter that already has a master weight and would "
                "be updated twice. No group was added.",
                cure="Put each parameter into only one group.",
            )
        self._replace_half_parameters(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with the master weights under ``"masters"``."""
        masters = {i: pair.master.detach() for i, pair in self._by_index().items()}
        return {**self.inner.state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state. Master weights and 16-bit parameters are restored exactly."""
        pairs, saved = self._by_index(), state_dict.get("masters", {})
        if _shapes(saved) != _shapes({i: pair.master for i, pair in pairs.items()}):
            raise UsageError(
                f"The optimizer state contains {len(saved)} master weights that do not match the "
                f"{len(pairs)} of this MasterWeights: it was saved by a different optimizer or for "
                "a different model. Nothing was loaded.",
                cure="To continue from a plain optimizer, load its state first, then wrap it: "
                "optimizer.load_state_dict(state); MasterWeights(optimizer).",
            )
        self.inner.load_state_dict({k: v for k, v in state_dict.items() if k != "masters"})
        with torch.no_grad():
            for i, pair in pairs.items():
                pair.master.copy_(saved[i])
        write_back(list(pairs.values()))

    def _pairs(self) -> list[MasterPair]:
        return [pair for group in self.param_groups for pair in group["params"].pairs]

    def _by_index(self) -> dict[int, MasterPair]:
        """Return the pairs by the index that torch gives their parameter in a state dict."""
        by_master = {pair.master: pair for pair in self._pairs()}
        return {i: by_master[m] for i, m in enumerate(self.master_parameters()) if m in by_master}

    def _replace_half_parameters(self, group: dict[str, Any]) -> None:
        params, pairs = list(group["params"]), []
        for i, param in enumerate(params):
            if param.dtype in HALF_DTYPES:
                pairs.append(MasterPair.of(param))
                params[i] = pairs[-1].master
                if param in self.state:
                    self.state[params[i]] = cast_to_fp32(dict(self.state.pop(param)))
        group["params"] = _Masters(params, pairs)


def _shapes(tensors: dict[int, Tensor]) -> dict[int, torch.Size]:
    return {i: tensor.shape for i, tensor in tensors.items()}
