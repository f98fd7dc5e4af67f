"""Lines of the user's code with stable operations in place of their own, for the length of a run.

``Substitute`` watches torch's functions being called; where the call comes from a line in question and
``halfguard.ops`` has a stable form of it, that form runs instead. So the cure is tried exactly where it
would be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from halfguard import ops
from halfguard.tracing.source import user_frame

Place = tuple[str, int]  # file and line


@dataclass(frozen=True)
class Stable:
    """A stable form, and how it stands in for torch's."""

    name: str  # in halfguard.ops
    call: Callable[..., Any]  # returns None if it cannot stand in for this call
    exact: bool = False  # the same mathematics without a limit, only carried out in float32


def _tensors(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    like = a if isinstance(a, Tensor) else b
    wide = [v if isinstance(v, Tensor) else torch.full_like(like, float(v)) for v in (a, b)]
    return wide[0], wide[1]


def _quotient(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor | None:
    return None if rounding_mode else ops.div(*_tensors(a, b))


def _quotient_in_place(a: Tensor, b: Any, **_: Any) -> Tensor:
    return a.copy_(ops.div(*_tensors(a, b)))


def _softmax(x: Tensor, dim: int = -1, *_: Any, **__: Any) -> Tensor:
    return ops.masked_softmax(x, ~x.isneginf(), dim)


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, **_: Any) -> Tensor | None:
    return ops.normalize(x, dim=dim) if p == 2 else None


def _cross_entropy(x: Tensor, target: Tensor, weight: Any = None, **options: Any) -> Tensor | None:
    known = {"ignore_index", "label_smoothing"}
    options = {k: v for k, v in options.items() if k not in ("size_average", "reduce")}
    if weight is not None or options.pop("reduction", "mean") != "mean" or options.keys() - known:
        return None
    return ops.cross_entropy(x, target, **options)


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor | None:
    return ops.rms_norm(x, weight, eps) if len(shape) == 1 else None


def _unary(name: str) -> Stable:
    return Stable(name, getattr(ops, name))


_UNARY = {name: _unary(name) for name in ("log", "exp", "sqrt", "rsqrt")}
_DIV = Stable("div", _quotient)
# By the name of torch's function, whichever of its forms was called: torch.log(x), x.log().
STABLE: dict[str, Stable] = {
    **_UNARY,
    **dict.fromkeys(("div", "true_divide", "__truediv__"), _DIV),
    "__rdiv__": Stable("div", lambda b, a: _quotient(a, b)),
    "div_": Stable("div", _quotient_in_place),
    "softmax": Stable("masked_softmax", _softmax, exact=True),
    "logsigmoid": Stable("logsigmoid", ops.logsigmoid, exact=True),
    "normalize": Stable("normalize", _normalize, exact=True),
    "cosine_similarity": Stable(
        "cosine_similarity",
        lambda a, b, dim=1, **_: ops.cosine_similarity(a, b, dim=dim),
        exact=True,
    ),
    "cross_entropy": Stable("cross_entropy", _cross_entropy, exact=True),
    "binary_cross_entropy": Stable(
        "binary_cross_entropy",
        lambda p, target, weight=None, **_: (
            None if weight is not None else ops.binary_cross_entropy(p, target)
        ),
    ),
    "rms_norm": Stable("rms_norm", _rms_norm, exact=True),
}
_POWERS = {0.5: _UNARY["sqrt"], -0.5: _UNARY["rsqrt"]}


class Substitute(TorchFunctionMode):
    """Runs stable forms for what is called on some lines; ``used`` says which, where."""

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._places = frozenset(places)
        self.used: dict[Place, set[Stable]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            # A mode is off inside the function that it was asked about, but the backward pass may compute
            # checkpointed blocks again. Beneath that function nobody asks.
            with self:
                return _backward(args[0])
        result = self._stable(getattr(func, "__name__", ""), args, kwargs)
        return func(*args, **kwargs) if result is None else result

    def _stable(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stable = STABLE.get(name)
        if name == "pow" and isinstance(args[-1], float):
            stable, args = _POWERS.get(args[-1]), args[:1]
        if stable is None:
            return None
        # The innermost line of the user, as the trace names it: not one that merely called the module.
        frame = user_frame(_NOBODY)
        place = None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        if place not in self._places:
            return None
        result = stable.call(*args, **kwargs)
        if result is not None:
            self.used.setdefault(place, set()).add(stable)
        return result


def _backward(loss: Tensor) -> None:
    torch.autograd.graph._engine_run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


_NOBODY = _tensors.__code__  # user_frame stops at a caller's code; here it looks at the whole stack
