"""Follow the calls of a step, recognize compositions, and run their stable form or their meaning instead.

The parts of a composition may have been assigned to names, or shifted by an epsilon, some lines before it
ends. So tensors are followed while the step runs, by their identity, not in the source. The parts still run,
but nothing uses them any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Self

import torch
from torch import Tensor

from halfguard.replaying import compositions as whole
from halfguard.replaying.compositions import Composition, SumOfSquares
from halfguard.replaying.function_modes import FunctionMode, Place, user_place


@dataclass(frozen=True)
class Part:
    """A tensor that a composition may be made of, and the lines that computed it."""

    tensor: Tensor  # kept alive: its identity is the key
    kind: str
    x: Tensor
    lines: frozenset[Place]
    dim: Any = None
    keepdim: bool = False
    squares: SumOfSquares | None = None
    power: float = 1.0  # of a sum of squares: 0.5 for a root, -0.5 for its reciprocal
    shift: float = 0.0  # epsilon that was added after a root


@dataclass(frozen=True)
class Found:
    """A composition in a step: the line on which it ends, and all lines that it consists of."""

    composition: Composition
    place: Place
    lines: frozenset[Place]


class CompositionRewrite(FunctionMode):
    """Replaces compositions that end on accepted lines; ``found`` lists all that were seen.

    With ``meaning`` their meaning is run, otherwise their stable form. With ``narrow`` the result has the
    dtype of the original expression, as the next layer of a model with 16-bit weights requires.
    """

    def __init__(
        self, accept: Callable[[Place], bool], *, meaning: bool = False, narrow: bool = False
    ) -> None:
        super().__init__()
        self._accept, self._meaning, self._narrow = accept, meaning, narrow
        self.narrowed = ""  # the method that casts to this dtype
        self._parts: dict[int, Part] = {}
        self._found: dict[tuple[Place, str], Found] = {}
        self.replaced = 0

    @property
    def found(self) -> list[Found]:
        """The first composition of each kind on each line."""
        return list(self._found.values())

    def __enter__(self) -> Self:
        self._parts.clear()  # of an earlier step
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name not in _RECOGNIZED:
            return func(*args, **kwargs)
        parts = [self._parts.get(id(arg)) if isinstance(arg, Tensor) else None for arg in args]
        result = self._composed(_finish(name, args, parts), parts)
        if result is None:
            result = func(*args, **kwargs)
        elif self._narrow and args[0].dtype in _METHODS:
            self.narrowed = _METHODS[args[0].dtype]
            result = result.to(args[0].dtype)
        if isinstance(result, Tensor):
            self._remember(name, args, kwargs, parts, result)
        return result

    def _composed(self, composition: Composition | None, parts: list[Part | None]) -> Tensor | None:
        place = None if composition is None else user_place()
        if composition is None or place is None:
            return None
        lines = frozenset({place}).union(*(part.lines for part in parts if part))
        self._found.setdefault((place, composition.kind), Found(composition, place, lines))
        if not self._accept(place):
            return None
        self.replaced += 1
        return composition.meaning() if self._meaning else composition.stable()

    def _remember(
        self, name: str, args: Any, kwargs: Any, parts: list[Part | None], result: Tensor
    ) -> None:
        part = _follow(name, args, kwargs, parts, result)
        if part is not None:
            place = user_place()
            lines = frozenset() if place is None else frozenset({place})
            self._parts[id(result)] = replace(part, lines=part.lines | lines)


_METHODS = {torch.float16: "half", torch.bfloat16: "bfloat16"}
_SMALL = 1e-3  # a larger number is no epsilon: it is meant
_SHIFTS = ("add", "radd", "clamp", "clamp_min", "clip")
_CASTS = ("float", "to", "half")
_RECOGNIZED = frozenset(
    {"sigmoid", "softmax", "exp", "log", "log1p", "rsub", "sub", "mul", "rmul", "square", "pow", "sum",
     "mean", "sqrt", "rsqrt", "norm", "vector_norm", "div", "truediv", "true_divide", *_SHIFTS, *_CASTS}
)  # fmt: skip


def _finish(name: str, args: Any, parts: list[Part | None]) -> Composition | None:
    """Return the composition that a call completes, if it completes one."""
    first = parts[0] if parts else None
    if name in ("log", "log1p"):
        return None if first is None else _logarithm(name, first)
    is_root = name == "sqrt" or (name == "pow" and _number(args, 1) == 0.5)
    if is_root and first is not None and first.squares is not None and first.power == 1:
        return first.squares.root()
    if name in ("div", "truediv", "true_divide") and len(args) == 2:
        return _normalized(args[0], parts[1], 0.5) or _softmax(first, parts[1])
    if name in ("mul", "rmul") and len(args) == 2:
        return _normalized(args[0], parts[1], -0.5) or _normalized(args[1], parts[0], -0.5)
    return None


def _logarithm(name: str, part: Part) -> Composition | None:
    if name == "log1p":
        return whole.softplus(part.x) if part.kind == "exp" else None
    if part.kind in ("sigmoid", "complement"):
        return whole.log_sigmoid(part.x, is_complement=part.kind == "complement")
    if part.kind == "softmax":
        return whole.log_softmax(part.x, part.dim)
    if part.kind == "sum of exp":
        return whole.log_sum_exp(part.x, part.dim, part.keepdim)
    return whole.softplus(part.x) if part.kind == "1 + exp" else None


def _softmax(powers: Part | None, total: Part | None) -> Composition | None:
    """Return a softmax that is written as a quotient."""
    if powers is None or total is None or powers.kind != "exp" or total.kind != "sum of exp":
        return None
    same = powers.x is total.x and total.keepdim and isinstance(total.dim, int)
    return whole.softmax(powers.x, total.dim) if same else None


def _normalized(x: Any, root: Part | None, power: float) -> Composition | None:
    """Return x divided by its own norm: x / root, or x times a reciprocal root."""
    if root is None or root.squares is None or x is not root.x or root.power != power:
        return None
    squares, dim = root.squares, root.squares.dim
    if isinstance(dim, tuple | list) and len(dim) == 1:
        dim = dim[0]
    if not squares.keepdim or not isinstance(dim, int):
        return None
    if squares.is_mean:
        is_last = dim in (-1, root.x.dim() - 1)
        return (
            whole.rms_norm(root.x, squares.eps)
            if is_last and squares.eps > 0 and not root.shift
            else None
        )
    is_short = max(root.shift, sqrt(squares.eps)) <= _SMALL
    return whole.unit_vector(root.x, dim) if is_short else None


def _follow(
    name: str, args: Any, kwargs: Any, parts: list[Part | None], result: Tensor
) -> Part | None:
    """Return the result of a call as a part of a composition, if it is one."""
    x, first = args[0], parts[0]
    if name in ("sigmoid", "exp") and isinstance(x, Tensor):
        return Part(result, name, x, frozenset())
    if name == "softmax":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return Part(result, "softmax", x, frozenset(), dim=-1 if dim is None else dim)
    if name in ("mul", "square", "pow") and _is_square(name, args):
        return Part(result, "square", x, frozenset())
    if name in ("norm", "vector_norm"):
        return _length(args, kwargs, result)
    if first is None and name in ("rsub", "sub", "add", "radd") and len(args) == 2:
        first, x = parts[1], args[1]  # 1 - p, 1 + e
        return None if first is None else _shifted(name, first, args[0], result, reversed_=True)
    if first is None:
        return None
    if name in ("div", "truediv", "true_divide"):
        softmax = _softmax(first, parts[1] if len(parts) > 1 else None)
        dim = parts[1].dim if softmax is not None and parts[1] is not None else None
        return None if softmax is None else replace(first, tensor=result, kind="softmax", dim=dim)
    if name in ("sum", "mean"):
        return _sum(name, first, args, kwargs, result)
    if name in ("sqrt", "rsqrt", "pow") and first.kind == "squares" and first.power == 1:
        power = {"sqrt": 0.5, "rsqrt": -0.5}.get(name, _number(args, 1))
        return replace(first, tensor=result, power=power) if abs(power) == 0.5 else None
    if name in _CASTS:
        return replace(first, tensor=result)
    other = args[1] if len(args) > 1 else kwargs.get("min")
    return _shifted(name, first, other, result)


def _is_square(name: str, args: Any) -> bool:
    if not isinstance(args[0], Tensor):
        return False
    if name == "mul":
        return len(args) == 2 and args[0] is args[1]
    return name == "square" or _number(args, 1) == 2


def _sum(name: str, part: Part, args: Any, kwargs: Any, result: Tensor) -> Part | None:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    if part.kind == "exp" and name == "sum" and dim is not None:
        return replace(part, tensor=result, kind="sum of exp", dim=dim, keepdim=keepdim)
    if part.kind != "square":
        return None
    squares = SumOfSquares(part.x, dim, keepdim, is_mean=name == "mean")
    return replace(part, tensor=result, kind="squares", squares=squares)


def _length(args: Any, kwargs: Any, result: Tensor) -> Part | None:
    """Return torch's own norm as a root of a sum of squares."""
    order = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else 2))
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    if order not in (2, "fro", None) or not isinstance(args[0], Tensor):
        return None
    keepdim = bool(kwargs.get("keepdim", args[3] if len(args) > 3 else False))
    squares = SumOfSquares(args[0], dim, keepdim)
    return Part(result, "squares", args[0], frozenset(), squares=squares, power=0.5)


def _shifted(
    name: str, part: Part, by: Any, result: Tensor, *, reversed_: bool = False
) -> Part | None:
    """Return a part that was shifted by a number: by an epsilon, or as 1 - p and 1 + e."""
    if isinstance(by, bool) or not isinstance(by, int | float):
        return None
    new = replace(part, tensor=result)
    if name in ("rsub", "sub"):  # 1 - p is rsub(p, 1) and sub(1, p)
        is_complement = by == 1 and part.kind == "sigmoid" and (name == "rsub" or reversed_)
        return replace(new, kind="complement") if is_complement else None
    if name not in _SHIFTS:
        return None
    if part.kind == "exp":
        return replace(new, kind="1 + exp") if by == 1 and "add" in name else None
    if part.kind == "squares" and part.squares is not None:
        if part.power != 1:
            return replace(new, shift=float(by))
        if "add" in name:
            return replace(new, squares=replace(part.squares, eps=part.squares.eps + float(by)))
        return new if by <= 1e-6 else None  # a clamp far below every real sum
    return new if part.kind in ("sigmoid", "complement", "softmax") and abs(by) <= _SMALL else None


def _number(args: Any, index: int) -> float:
    value = args[index] if len(args) > index else None
    return float(value) if isinstance(value, int | float) else 0.0
