"""What a forward pass ran in: a name, and the choices behind it as they were measured.

==========  ========  ========  ======================
products    weights   autocast  name
==========  ========  ========  ======================
float32     any                 ``fp32``
float16     float32             ``fp16-mixed``
float16     float16   on        ``fp16-weights``
float16     float16   off       ``fp16-true``
float16     bfloat16            ``fp16 on bf16 weights``
==========  ========  ========  ======================

and likewise for bfloat16. The dtype is that of most of the work; where 16 bits do less than half of it, the
name begins with ``partly``. Three things are left out of the count, as long as something else remains: what
no gradient passes through, such as a frozen encoder; what is outside of the model, such as a loss; and FP32
islands, within which somebody has switched autocast off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from halfguard.diagnosis.model.products import Product
from halfguard.precision.modes import HALF_DTYPES

_SHORT = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
_PARTLY = "partly "
_COUNTS: tuple[Callable[[Product], bool], ...] = (
    lambda product: product.trains,
    lambda product: product.module is not None,
    lambda product: not product.around.island,
)


@dataclass(frozen=True)
class Ran:
    """A precision: its name, and by short names the dtypes of the weights and of autocast."""

    name: str
    weights: str
    autocast: str  # "off" if there is none
    left: tuple[str, ...] = ()  # modules that computed in more bits, where it is partly in 16

    @property
    def partly(self) -> bool:
        """Whether 16 bits did some of the work, and less than half of it."""
        return self.name.startswith(_PARTLY)


def named(name: str) -> Ran:
    """The choices that a name stands for, as somebody asked for them."""
    short, _, kind = name.partition("-")
    weights = short if kind in ("", "weights", "true") else "fp32"
    return Ran(name, weights, short if kind in ("mixed", "weights") else "off")


def measured(products: Iterable[Product], weights: Counter[torch.dtype]) -> Ran:
    """The precision that these products ran in, with weights of these dtypes."""
    judged = list(products)
    for counts in _COUNTS:
        judged = [product for product in judged if counts(product)] or judged
    work: defaultdict[torch.dtype, float] = defaultdict(float)
    for product in judged:
        work[product.dtype] += product.work
    most = sorted(work, key=work.__getitem__, reverse=True)
    held = _short(*[dtype for dtype, _ in weights.most_common(1)])
    half = next((dtype for dtype in most if dtype in HALF_DTYPES), None)
    if half is None:
        return Ran(_short(*most[:1]), held, _autocast(judged))
    autocast = _autocast(product for product in judged if product.dtype is half)
    name = _name(_short(half), held, autocast)
    if 2 * sum(work[dtype] for dtype in HALF_DTYPES) >= sum(work.values()):
        return Ran(name, held, autocast)
    others = [place(product.module) for product in judged if product.dtype not in HALF_DTYPES]
    return Ran(_PARTLY + name, held, autocast, tuple(dict.fromkeys(others)))


def in_words(name: str) -> str:
    """``"in fp16-mixed"``, ``"partly in fp16-mixed"``."""
    return f"partly in {name.removeprefix(_PARTLY)}" if name.startswith(_PARTLY) else f"in {name}"


def place(module: str | None) -> str:
    """A module's path in words."""
    return "outside the model" if module is None else module or "the model itself"


def _name(half: str, weights: str, autocast: str) -> str:
    if weights == half:
        return f"{half}-{'true' if autocast == 'off' else 'weights'}"
    return f"{half} on {weights} weights" if weights in ("fp16", "bf16") else f"{half}-mixed"


def _autocast(products: Iterable[Product]) -> str:
    on = Counter(p.around.autocast for p in products if p.around.autocast is not None)
    return _short(on.most_common(1)[0][0]) if on else "off"


def _short(dtype: torch.dtype | None = None) -> str:
    return "unknown" if dtype is None else _SHORT.get(dtype, "unknown")
