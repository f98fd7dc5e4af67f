"""Why an operation returned NaN or Inf, from its inputs at that moment: a table of rules.

A rule tells which inputs an operation has no finite value for. Where such an input comes from (an eps that is
0 in half, a count of nothing) is known from its makers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from halfguard.formats import largest_of
from halfguard.investigation.makers import Maker, Makers
from halfguard.investigation.passes import HALF_NAMES, Reason
from halfguard.records.autopsy import Culprit
from halfguard.tracing.call_arguments import Call, tensors_in

# A zero, or a number at the edge, goes through these from where it was made.
_THROUGH = frozenset({
    "to", "sqrt", "rsqrt", "pow", "square", "abs", "neg", "mean", "sum", "amax", "clamp_max",
    "mul", "div", "clone", "cat", "index", "gather", "index_select", "stack", "expand", "prod",
    "where", "relu", "add", "sub", "rsub", "cumsum", "var", "std", "maximum", "minimum", "reciprocal",
    "binary_cross_entropy", "binary_cross_entropy_backward", "squeeze", "view",
})  # fmt: skip
_NOT_CANCELLED = frozenset({"pow", "square", "sum", "mean", "abs"})  # a distance may be 0
_CODES = {"is 0 in float16": "HG119"}


@dataclass(frozen=True)
class BadCall:
    """The call that made the first bad number."""

    call: Call
    args: Sequence[Any]
    out: Any
    culprit: Culprit
    exact: float  # the largest result in FP64
    makers: Makers

    @property
    def dtype(self) -> str:
        return self.culprit.dtype

    def argument(self, index: int) -> Any:
        return self.args[index] if len(self.args) > index else None


def find_reason(bad: BadCall) -> Reason | None:
    """Return why the result is bad, by the first rule that applies."""
    backward = bad.culprit.phase == "backward"
    name = bad.call.func.overloadpacket.__name__.rstrip("_")
    rules = [_DERIVATIVES.get(bad.culprit.op)] if backward else []
    rules += [_RULES.get(name), _statistic, _constant, _overflow]
    for rule in filter(None, rules):
        for reason in rule(bad):
            return reason
    return None


def _why(bad: BadCall, tensor: Any, text: str) -> Reason:
    """Return a reason, with where the numbers of one input come from."""
    maker = bad.makers.get(tensor) if isinstance(tensor, Tensor) else None
    source = None if maker is None else _source(maker)
    if source is None:
        return Reason(text=text)
    code = next((code for sign, code in _CODES.items() if sign in source.lost), "")
    at = f" at {source.place}" if source.place else ""
    return Reason(
        text=f"{text} because {source.lost} ({source.op}{at})", code=code, place=source.place
    )


def _source(maker: Maker) -> Maker | None:
    """Return the nearest maker that lost something, as far as zeros pass."""
    waiting = [(maker, False)]
    for _ in range(24):
        if not waiting:
            return None
        one, squared = waiting.pop(0)
        if one.lost and not (squared and "cancellation" in one.lost):
            return one
        if one.op in _THROUGH:
            squared = squared or one.op in _NOT_CANCELLED
            waiting += [(before, squared) for before in one.of]
    return None


def _share(flags: Tensor) -> str:
    count, size = int(flags.sum()), flags.numel()
    return "" if size == 1 else f" ({count} of {size} values)"


# -- the forward pass


def _division(bad: BadCall) -> Iterator[Reason]:
    by = bad.argument(1) if len(bad.args) > 1 else bad.argument(0)
    if not isinstance(by, Tensor):
        if by == 0:
            yield Reason(text="it divides by 0")
        return
    if bool((by == 0).any()):
        yield _why(bad, by, f"it divides by 0{_share(by == 0)}")
    elif math.isfinite(bad.exact):
        least = float(by.abs().min())
        text = f"it divides by values down to {least:.3g}, and the quotient, up to {bad.exact:.3g}"
        yield _why(bad, by, f"{text}, exceeds the range of {bad.dtype}")


def _step_of_optimizer(bad: BadCall) -> Iterator[Reason]:
    if any(bool((by == 0).any()) for by in tensors_in(bad.argument(2))):
        what = f", where its eps is 0 in {bad.dtype}" if bad.dtype in HALF_NAMES else ""
        yield Reason(text=f"the optimizer step divides by 0{what}")


def _outside(what: str, flags: Callable[[Tensor], Tensor]) -> Callable[[BadCall], Iterator[Reason]]:
    """Return a rule for a function of one number that has no finite value at some."""

    def rule(bad: BadCall) -> Iterator[Reason]:
        given = bad.argument(0)
        if isinstance(given, Tensor) and bool((at := flags(given)).any()):
            yield _why(bad, given, f"it is given {what}{_share(at)}")

    return rule


def _power(bad: BadCall) -> Iterator[Reason]:
    base, exponent = bad.argument(0), bad.argument(1)
    if not isinstance(base, Tensor) or not isinstance(exponent, int | float):
        return
    if exponent < 0 and bool((base == 0).any()):
        yield _why(bad, base, f"0 is raised to the power {exponent:g}{_share(base == 0)}")
    elif exponent != int(exponent) and bool((base < 0).any()):
        yield _why(
            bad, base, f"negative values are raised to the power {exponent:g}{_share(base < 0)}"
        )


def _masked_rows(bad: BadCall) -> Iterator[Reason]:
    scores, dim = bad.argument(0), bad.argument(1)
    if not isinstance(scores, Tensor) or not isinstance(dim, int) or not scores.dim():
        return
    rows = scores.isneginf().all(dim)
    if bool(rows.any()):
        yield Reason(
            text=(
                f"{int(rows.sum())} of {rows.numel()} rows are fully masked: all of their scores are -Inf, "
                "so the softmax is NaN"
            )
        )


def _masked_attention(bad: BadCall) -> Iterator[Reason]:
    masks = [one.tensor for one in bad.call.tensors if "mask" in one.name]
    for mask in masks:
        shut = ~mask if mask.dtype == torch.bool else mask.isneginf()
        if mask.dim() and bool(shut.all(-1).any()):
            text = f"{int(shut.all(-1).sum())} rows of the mask mask every position"
            yield Reason(text=f"{text}, so the softmax is NaN")


def _cast_down(bad: BadCall) -> Iterator[Reason]:
    given = bad.argument(0)
    if isinstance(given, Tensor) and math.isfinite(bad.exact):
        text = f"values up to {bad.exact:.6g} are cast to {bad.dtype}"
        text = f"{text}, whose largest is {largest_of(bad.dtype):g}"
        maker = bad.makers.get(given) if bad.culprit.phase == "backward" else None
        source = None if maker is None else _source(maker)
        if source is not None:  # that made a gradient so large
            text = f"{text}; {source.lost} ({source.op} at {source.place})"
        yield Reason(text=text)


def _infinities(bad: BadCall) -> Iterator[Reason]:
    """Yield an infinity that a mask has written, and that meets 0 or another one."""
    given = [one.tensor for one in bad.call.tensors]
    if not any(bool(one.isinf().any()) for one in given if one.is_floating_point()):
        return
    product = bad.call.func.overloadpacket.__name__.startswith("mul")
    text = "0 is multiplied by Inf" if product else "Inf is subtracted from Inf"
    yield Reason(text=f"{text} (from a mask, for example), which gives NaN")


def _labels(_bad: BadCall) -> Iterator[Reason]:
    yield Reason(
        text="all labels are ignored, and the mean of an empty selection is NaN", code="HG612"
    )


def _statistic(bad: BadCall) -> Iterator[Reason]:
    """Yield a mean of nothing, or a deviation of one number."""
    given = [one.tensor for one in bad.call.tensors if one.tensor.is_floating_point()]
    results = sum(one.numel() for one in tensors_in(bad.out))
    if given and given[0].numel() == 0 and results:
        yield Reason(text="its input is empty because nothing was selected", few="none")
    deviates = bad.call.func.overloadpacket.__name__.startswith(("std", "var"))
    if deviates and given and given[0].numel() == results:
        text = "it is the standard deviation of a single value, so it divides by 0"
        yield Reason(text=text, few="one")


def _constant(bad: BadCall) -> Iterator[Reason]:
    """Yield a constant that is beyond the range of half."""
    largest = largest_of(bad.dtype)
    for value in bad.args:
        beyond = isinstance(value, int | float) and largest < abs(value) < math.inf
        if beyond and not isinstance(value, bool):
            text = f"the constant {value:g} is beyond {math.copysign(largest, value):g}"
            yield Reason(text=f"{text}, the limit of {bad.dtype}", code="HG101")


_SUMS = ("sum", "mean", "cumsum", "mm", "bmm", "addmm", "matmul", "convolution", "linear", "norm")


def _overflow(bad: BadCall) -> Iterator[Reason]:
    largest, exact = largest_of(bad.dtype), bad.exact
    if not math.isfinite(exact) or exact <= largest:
        return
    given = [max(abs(one.low), abs(one.high)) for one in bad.culprit.inputs]
    inputs = ", ".join(f"{one:.4g}" for one in given if not math.isnan(one))
    adds = any(name in bad.culprit.kernel for name in _SUMS)
    of_backward = bad.culprit.phase == "backward"
    what = "the sum" if adds else "a value of the backward pass" if of_backward else "the result"
    text = f"{what} reaches {exact:.6g}, but the largest value of {bad.dtype} is {largest:g}"
    yield Reason(text=text + (f" (inputs up to {inputs})" if inputs else ""))


# -- derivatives


def _derivative(
    what: str, flags: Callable[[Tensor], Tensor]
) -> Callable[[BadCall], Iterator[Reason]]:
    """Return a rule for a derivative that is infinite at some numbers."""

    def rule(bad: BadCall) -> Iterator[Reason]:
        given = [one.tensor for one in bad.call.tensors if one.tensor.is_floating_point()]
        edges = [one for one in reversed(given) if bool(flags(one).any())]
        known = [one for one in edges if (maker := bad.makers.get(one)) and _source(maker)]
        for one in known or edges:
            text = f"its derivative is Inf at {what}, which its input contains"
            yield _why(bad, one, f"{text}{_share(flags(one))}")

    return rule


_AT_ZERO = _derivative("0", lambda x: x == 0)
# The kernel is given 1 - x * x.
_AT_EDGE = _derivative("1 and -1", lambda x: (x == 0) | (x.abs() == 1))
_NEGATIVE = _outside("negative numbers", lambda x: x < 0)
_ZERO = _outside("0", lambda x: x == 0)
_BEYOND_ONE = _outside("numbers beyond -1 and 1", lambda x: x.abs() > 1)
_DERIVATIVES: dict[str, Callable[[BadCall], Iterator[Reason]]] = {
    **dict.fromkeys(
        ("sqrt", "rsqrt", "pow", "linalg_vector_norm", "norm", "log", "log2", "std"), _AT_ZERO
    ),
    **dict.fromkeys(("acos", "asin", "atanh", "acosh", "arccos", "arcsin"), _AT_EDGE),
}
_RULES: dict[str, Callable[[BadCall], Iterator[Reason]]] = {
    **dict.fromkeys(("div", "reciprocal", "remainder", "fmod"), _division),
    **dict.fromkeys(("addcdiv", "_foreach_addcdiv"), _step_of_optimizer),
    **dict.fromkeys(("log", "log2", "log10", "rsqrt"), lambda bad: chain(_ZERO(bad), _NEGATIVE(bad))),
    "log1p": _outside("-1 or less", lambda x: x <= -1),
    "sqrt": _NEGATIVE,
    **dict.fromkeys(("acos", "asin"), _BEYOND_ONE),
    **dict.fromkeys(("atanh", "erfinv"), _outside("1 or more", lambda x: x.abs() >= 1)),
    "logit": _outside("0 or 1", lambda x: (x <= 0) | (x >= 1)),
    "pow": _power,
    **dict.fromkeys(("_softmax", "_log_softmax"), _masked_rows),
    **dict.fromkeys(("mul", "sub", "add"), _infinities),
    "_to_copy": _cast_down,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _labels),
    **dict.fromkeys((
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_attention_math", "_masked_softmax",
    ), _masked_attention),
}  # fmt: skip
