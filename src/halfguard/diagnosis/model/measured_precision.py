"""The precision that a forward pass ran in: a name, and the measured dtypes behind it.

==========  ========  ========  ======================
products    weights   autocast  name
==========  ========  ========  ======================
float32     any                 ``fp32``
float16     float32             ``fp16-mixed``
float16     float16   on        ``fp16-weights``
float16     float16   off       ``fp16-true``
float16     bfloat16            ``fp16 on bf16 weights``
==========  ========  ========  ======================

and likewise for bfloat16. The dtype is the one with the most FLOPs. If less than half of the FLOPs are in 16
bits, the name begins with ``partly``. Three kinds of products are not counted, as long as others remain:
products that no gradient passes through, such as a frozen encoder's; products outside of the model, such as
a loss function's; and FP32 islands, in which autocast was switched off on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from halfguard.diagnosis.model.forward import Product
from halfguard.precision.modes import HALF_DTYPES

SHORT_NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
_PARTLY = "partly "
_COUNTED: tuple[Callable[[Product], bool], ...] = (
    lambda product: product.passes_gradient,
    lambda product: product.module is not None,
    lambda product: not product.context.island,
)


@dataclass(frozen=True)
class MeasuredPrecision:
    """A precision: its name, and the short names of the dtypes of weights and autocast."""

    name: str
    weights: str
    autocast: str  # or "off"
    wider_modules: tuple[str, ...] = ()  # modules that computed in more than 16 bits, if partial

    @property
    def is_partial(self) -> bool:
        """Return whether some FLOPs were in 16 bits, but less than half."""
        return self.name.startswith(_PARTLY)


def parse_precision(name: str) -> MeasuredPrecision:
    """Return the weights and autocast that a requested precision stands for."""
    short, _, kind = name.partition("-")
    weights = short if kind in ("", "weights", "true") else "fp32"
    return MeasuredPrecision(name, weights, short if kind in ("mixed", "weights") else "off")


def measure_precision(
    products: Iterable[Product], weights: Counter[torch.dtype]
) -> MeasuredPrecision:
    """Return the precision of these products; ``weights`` counts trained elements by dtype."""
    counted = list(products)
    for is_counted in _COUNTED:
        counted = [product for product in counted if is_counted(product)] or counted
    flops: defaultdict[torch.dtype, float] = defaultdict(float)
    for product in counted:
        flops[product.dtype] += product.flops
    by_flops = sorted(flops, key=flops.__getitem__, reverse=True)
    weights_name = _short_name(*[dtype for dtype, _ in weights.most_common(1)])
    half = next((dtype for dtype in by_flops if dtype in HALF_DTYPES), None)
    if half is None:
        return MeasuredPrecision(_short_name(*by_flops[:1]), weights_name, _autocast_name(counted))
    autocast = _autocast_name(product for product in counted if product.dtype is half)
    name = _half_name(_short_name(half), weights_name, autocast)
    if 2 * sum(flops[dtype] for dtype in HALF_DTYPES) >= sum(flops.values()):
        return MeasuredPrecision(name, weights_name, autocast)
    wider = [
        describe_module(product.module) for product in counted if product.dtype not in HALF_DTYPES
    ]
    return MeasuredPrecision(_PARTLY + name, weights_name, autocast, tuple(dict.fromkeys(wider)))


def describe_precision(name: str) -> str:
    """Return ``"in fp16-mixed"`` or ``"partly in fp16-mixed"``."""
    return f"partly in {name.removeprefix(_PARTLY)}" if name.startswith(_PARTLY) else f"in {name}"


def describe_module(module: str | None) -> str:
    """Return the path of a module, or a phrase for the model itself and for the outside."""
    return "outside the model" if module is None else module or "the model itself"


def _half_name(half: str, weights: str, autocast: str) -> str:
    if weights == half:
        return f"{half}-{'true' if autocast == 'off' else 'weights'}"
    return f"{half} on {weights} weights" if weights in ("fp16", "bf16") else f"{half}-mixed"


def _autocast_name(products: Iterable[Product]) -> str:
    on = Counter(p.context.autocast for p in products if p.context.autocast is not None)
    return _short_name(on.most_common(1)[0][0]) if on else "off"


def _short_name(dtype: torch.dtype | None = None) -> str:
    return "unknown" if dtype is None else SHORT_NAMES.get(dtype, "unknown")
