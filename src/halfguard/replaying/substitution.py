"""Run stable operations in place of torch's on given lines of the user's code.

``StableSubstitution`` intercepts torch's functions. If a call comes from one of the lines and
``halfguard.ops`` has a stable form of it, that form runs instead. So the cure is tried exactly where it
would be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfguard import ops
from halfguard.replaying.function_modes import FunctionMode, Place, user_place


@dataclass(frozen=True)
class StableForm:
    """A stable form of a torch function."""

    name: str  # in halfguard.ops
    call: Callable[..., Any]  # returns None if it cannot replace this call
    exact: bool = False  # the same mathematics in float32, without a limit


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


_UNARY = {name: StableForm(name, getattr(ops, name)) for name in ("log", "exp", "sqrt", "rsqrt")}
_DIV = StableForm("div", _quotient)
# By the name of torch's function, in any form: torch.log(x), x.log().
STABLE_FORMS: dict[str, StableForm] = {
    **_UNARY,
    **dict.fromkeys(("div", "true_divide", "__truediv__"), _DIV),
    "__rdiv__": StableForm("div", lambda b, a: _quotient(a, b)),
    "div_": StableForm("div", _quotient_in_place),
    "softmax": StableForm("masked_softmax", _softmax, exact=True),
    "logsigmoid": StableForm("logsigmoid", ops.logsigmoid, exact=True),
    "normalize": StableForm("normalize", _normalize, exact=True),
    "cosine_similarity": StableForm(
        "cosine_similarity",
        lambda a, b, dim=1, **_: ops.cosine_similarity(a, b, dim=dim),
        exact=True,
    ),
    "cross_entropy": StableForm("cross_entropy", _cross_entropy, exact=True),
    "binary_cross_entropy": StableForm(
        "binary_cross_entropy",
        lambda p, target, weight=None, **_: (
            None if weight is not None else ops.binary_cross_entropy(p, target)
        ),
    ),
    "rms_norm": StableForm("rms_norm", _rms_norm, exact=True),
}
_POWERS = {0.5: _UNARY["sqrt"], -0.5: _UNARY["rsqrt"]}


class StableSubstitution(FunctionMode):
    """Runs stable forms for calls on given lines; ``used`` lists them by line."""

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._places = frozenset(places)
        self.used: dict[Place, set[StableForm]] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = self._stable(getattr(func, "__name__", ""), args, kwargs)
        return func(*args, **kwargs) if result is None else result

    def _stable(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stable = STABLE_FORMS.get(name)
        if name == "pow" and isinstance(args[-1], float):
            stable, args = _POWERS.get(args[-1]), args[:1]
        if stable is None:
            return None
        # The innermost line of the user, as in the trace, not a line that only called the module.
        if user_place() not in self._places:
            return None
        place, result = user_place(), stable.call(*args, **kwargs)
        if result is not None and place is not None:
            self.used.setdefault(place, set()).add(stable)
        return result
