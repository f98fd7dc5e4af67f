"""The sweep over a tape, from its end to its beginning: what each rounding does to loss and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from halfguard.tracing.call_arguments import WIDE
from halfguard.tracing.rounding_tape import JUMPS, KINKED_BACKWARD, Entry, Held, RoundingTape
from halfguard.tracing.storage_regions import (
    as_reals,
    covers_storage,
    is_all_finite,
    may_overlap,
    real_size,
    region_of,
)

# Functions of one number: between the 16-bit and the exact number, the slope of the line through both is
# right, also across a kink or where the function bends within the difference.
_OF_ONE_NUMBER = JUMPS | {
    "relu", "relu_", "abs", "clamp", "clamp_min", "clamp_max", "hardtanh", "leaky_relu", "threshold",
    "hardsigmoid", "hardswish", "elu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "softplus", "gelu", "silu", "sin", "cos", "erf",
}  # fmt: skip
_SLOPE_BACKWARD = KINKED_BACKWARD | {
    "sigmoid_backward", "tanh_backward", "softplus_backward", "gelu_backward", "silu_backward",
}  # fmt: skip
_SAME = 1e-9  # relative difference below which two numbers have no slope between them

Seeds = Iterable[tuple[Held, Tensor]]
Grads = Sequence[Tensor | None]


def sweep(
    tape: RoundingTape, of_loss: Seeds, of_gradients: Seeds
) -> Iterator[tuple[Entry, list[tuple[float, float]]]]:
    """Yield each entry, from the last, with the sum of the effects of its errors, and of their squares.

    Two effects are followed at once: on the loss, and on the gradients. Each is the sum of the seeds'
    tensors times their weights.
    """
    both = Adjoints(of_loss), Adjoints(of_gradients)
    for index, entry in reversed([*enumerate(tape.entries)]):
        passed = both if index < tape.forward_entries else both[1:]
        found = [[one.take(r.tensor, r.key) for r in entry.results] for one in passed]
        if all(one is None for each in found for one in each):
            continue
        effects = [_effect(entry.errors, each) for each in found]
        yield entry, effects if len(effects) == 2 else [(0.0, 0.0), *effects]
        _pass_on(tape, entry, found, passed)


def _pass_on(
    tape: RoundingTape, entry: Entry, found: Sequence[Grads], adjoints: Sequence[Adjoints]
) -> None:
    """Add to the adjoints of what an entry read."""
    # What no rounding has changed needs no adjoint.
    wanted = [one for one in entry.inputs if one.exact is not None]
    if not wanted or not entry.repeats:
        return
    try:
        passed = _through(entry, wanted, found)
    except Exception as error:  # noqa: BLE001 - an operation without a derivative
        tape.note(f"has no derivative ({type(error).__name__})", entry)
        return
    for adjoint, grads in zip(adjoints, passed, strict=True):
        for one, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                adjoint.add(one.tensor, one.key, grad)


def _effect(errors: Grads, adjoints: Grads) -> tuple[float, float]:
    total, square = 0.0, 0.0
    for error, adjoint in zip(errors, adjoints, strict=True):
        if error is not None and adjoint is not None:
            product = (error * adjoint.conj()).real if error.is_complex() else error * adjoint
            total += float(product.sum())
            square += float(torch.dot(flat := product.reshape(-1), flat))
    return total, square


def _through(entry: Entry, wanted: Sequence[Held], found: Sequence[Grads]) -> Sequence[Grads]:
    """Return the adjoints of what an entry read, from those of what it made, for each of several."""
    if entry.packet in _OF_ONE_NUMBER and len(wanted) == 1 and not entry.is_complex:
        slope = _secant(entry, wanted[0])
        return [[None if one[0] is None else one[0] * slope] for one in found]
    if entry.packet in _SLOPE_BACKWARD:
        slopes = _secant_backward(entry, wanted)
        return [[None if o[0] is None else o[0] * slope for slope in slopes] for o in found]
    decomposes = entry.func in decomposition_table
    # The formula for a norm takes its statistics as given.
    if not decomposes or "norm" not in entry.packet:
        try:
            return _derivative(entry, wanted, found, decomposed=False)
        except (RuntimeError, NotImplementedError):
            if not decomposes:
                raise
    return _derivative(entry, wanted, found, decomposed=True)


def _products(entry: Entry, wanted: Sequence[Held], found: Sequence[Grads]) -> Sequence[Grads]:
    """Pass through a matrix product without computing it again."""
    left, right = entry.inputs[:2]
    factors = {
        id(left): right.middle.mT.conj() if left in wanted else None,
        id(right): left.middle.mT.conj() if right in wanted else None,
    }

    def passed(one: Held, adjoint: Tensor | None) -> Tensor | None:
        factor = factors[id(one)]
        if adjoint is None or factor is None:
            return None
        return adjoint @ factor if one is left else factor @ adjoint

    return [[passed(one, each[0]) for one in wanted] for each in found]


@torch.enable_grad()
def _derivative(
    entry: Entry, wanted: Sequence[Held], found: Sequence[Grads], *, decomposed: bool
) -> Sequence[Grads]:
    if entry.packet in ("mm", "bmm"):
        return _products(entry, wanted, found)
    leaves = {id(one): one.middle.detach().requires_grad_() for one in wanted}
    out = entry.run(
        lambda one: leaves[id(one)] if id(one) in leaves else one.middle,  # noqa: SIM401
        dtypes=WIDE,
        decomposed=decomposed,
    )
    passed: list[Grads] = []
    for each in found:
        used = [
            (made, adjoint.to(made.dtype))
            for made, adjoint in zip(out, each, strict=True)
            if adjoint is not None and made.requires_grad
        ]
        if not used:
            passed.append([None] * len(wanted))
            continue
        outputs, weights = zip(*used, strict=True)
        passed.append(
            torch.autograd.grad(
                outputs,
                list(leaves.values()),
                weights,
                retain_graph=len(found) > 1,
                allow_unused=True,
            )
        )
    return passed


def _slope(rise: Tensor, run: Tensor) -> Tensor:
    return torch.where(run == 0, 0.0, rise / torch.where(run == 0, 1.0, run))


def _secant(entry: Entry, one: Held) -> Tensor:
    ends = one.wide, one.right
    apart = ends[0] - ends[1]
    rise = entry.run(lambda o: o.wide)[0] - entry.run(lambda o: o.right if o is one else o.wide)[0]
    near = apart.abs() <= _SAME * ends[1].abs()
    slope = _slope(rise, apart)
    if not bool(near.any()):
        return slope
    ones = torch.ones_like(rise, dtype=torch.float32)
    smooth = _derivative(entry, [one], [[ones]], decomposed=False)[0][0]
    return torch.where(near, 0.0 if smooth is None else smooth, slope)


def _secant_backward(entry: Entry, wanted: Sequence[Held]) -> Sequence[Tensor]:
    """Return the slopes of grad * slope(x): for ``grad`` the mean one, for x what a changed one changes."""
    grad, x = entry.inputs[:2]
    unit = torch.ones_like(grad.wide)
    steep = entry.run(lambda o: unit if o is grad else o.wide)[0]
    even = entry.run(lambda o: unit if o is grad else o.right)[0]
    changed = grad.middle * _slope(steep - even, x.wide - x.right)
    return [(steep + even) / 2 if one is grad else changed for one in wanted]


class Adjoints:
    """The derivative of one number with respect to every storage, at one moment of the sweep."""

    def __init__(self, seeds: Seeds) -> None:
        self._of: dict[int, tuple[int, Tensor]] = {}
        for held, weights in seeds:
            self.add(held.tensor, held.key, weights)

    def add(self, tensor: Tensor, key: int, adjoint: Tensor) -> None:
        """Add to the adjoint of a region, in FP32."""
        adjoint = adjoint.to(torch.complex64 if adjoint.is_complex() else torch.float32)
        if not is_all_finite(adjoint):
            adjoint = adjoint.nan_to_num(0.0, 0.0, 0.0)
        size, flat = self._of.get(key, (0, None))
        if flat is None or size != real_size(tensor):
            if covers_storage(tensor):
                own = adjoint.conj() if tensor.is_conj() else adjoint
                self._of[key] = real_size(tensor), as_reals(own).clone()
                return
            count = tensor.untyped_storage().nbytes() // real_size(tensor)
            flat = torch.zeros(count, device=tensor.device)
            self._of[key] = real_size(tensor), flat
        region = region_of(flat, tensor)
        shared = [d for d, s in enumerate(tensor.stride()) if s == 0 and tensor.shape[d] > 1]
        for dim in shared:  # an expanded tensor: all of its elements are one
            adjoint, region = adjoint.sum(dim, keepdim=True), region.narrow(dim, 0, 1)
        if may_overlap(region):
            index = torch.arange(flat.numel(), device=flat.device)
            flat.index_add_(0, region_of(index, tensor).reshape(-1), adjoint.reshape(-1))
        else:
            region.add_(adjoint)

    def take(self, tensor: Tensor, key: int) -> Tensor | None:
        """Return the adjoint of a region that was written here; before that it had other numbers."""
        size, flat = self._of.get(key, (0, None))
        if flat is None or size != real_size(tensor):
            return None
        region = region_of(flat, tensor)
        if tensor.numel() * (2 if tensor.is_complex() else 1) == flat.numel():
            del self._of[key]
            return region
        taken = region.clone()
        region.zero_()
        return taken
