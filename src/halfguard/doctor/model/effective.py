"""The precision that a forward pass really ran in, by name, with what was seen as evidence.

Two things make the name: the dtype of the products, and the dtype of the weights that are trained.

=========  ==========  ========  ================
products   weights     autocast  name
=========  ==========  ========  ================
float32    float32               ``fp32``
float16    float32               ``fp16-mixed``
float16    float16     on        ``fp16-weights``
float16    float16     off       ``fp16-true``
=========  ==========  ========  ================

and likewise for bfloat16. Some products in FP32 beside those in 16 bits are islands, and change nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from halfguard.doctor.model.forward import Forward, Product
from halfguard.doctor.model.subject import Subject
from halfguard.doctor.model.wording import listed, spoken
from halfguard.errors import UsageError
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.diagnosis import Effective

_SHORT = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
# The words that frameworks and people have for the same thing.
_NAMES = {
    "fp32": ("32", "32-true", "no", "float32", "off"),
    "fp16-mixed": ("16", "16-mixed", "fp16", "float16"),
    "bf16-mixed": ("bf16", "bfloat16"),
    "fp16-true": ("16-true",),
    "bf16-true": (),
    "fp16-weights": (),
    "fp64": ("64", "64-true"),
}


def asked_for(precision: Any) -> str | None:
    """A request in anybody's words, as one of our names."""
    if precision is None:
        return None
    word = str(precision).lower().removeprefix("torch.")
    for name, others in _NAMES.items():
        if word == name or word in others:
            return name
    raise UsageError(
        f"precision {precision!r} is not known, so it cannot be compared with what runs.",
        cure=f"Allowed: {', '.join(_NAMES)}; also Lightning's and Accelerate's words for them.",
    )


def effective(subject: Subject, forward: Forward) -> Effective:
    """Compare what ran with what was asked for."""
    got = _name(forward)
    found = Effective(asked=subject.asked, got=got, evidence=tuple(_evidence(subject, forward)))
    if found.as_asked and subject.asked is not None:
        return found
    why = subject.advise(subject.asked, got).why
    return found.model_copy(update={"why": why})


def _name(forward: Forward) -> str:
    counts = Counter(product.dtype for product in forward.products)
    halves = [dtype for dtype, _ in counts.most_common() if dtype in HALF_DTYPES]
    if not counts:
        return "unknown"
    if not halves:
        return _SHORT.get(counts.most_common(1)[0][0], "unknown")
    dtype = halves[0]
    weights = forward.weights.most_common(1)
    if not weights or weights[0][0] not in HALF_DTYPES:
        return f"{_SHORT[dtype]}-mixed"
    under = any(p.autocast is not None for p in forward.products if p.dtype is dtype)
    return f"{_SHORT[dtype]}-{'weights' if under else 'true'}"


def _evidence(subject: Subject, forward: Forward) -> list[str]:
    facts = [_products(forward)]
    on = dict.fromkeys(p.autocast for p in forward.products if p.autocast is not None)
    facts.append(f"autocast on {subject.device_type}: {_words(on) or 'off'}")
    facts.append(f"trained weights: {_words(forward.weights) or 'none'}")
    if subject.scaler is None:
        facts.append("loss scale: none")
    else:
        scale = f"{subject.scaler.get_scale():g}" if subject.scales else "switched off"
        facts.append(f"loss scale: {scale}")
    return facts


def _products(forward: Forward) -> str:
    counts = Counter(product.dtype for product in forward.products)
    if not counts:
        return "no matrix product ran"
    parts = []
    for position, (dtype, count) in enumerate(counts.most_common()):
        modules = dict.fromkeys(_place(p) for p in forward.products if p.dtype is dtype)
        where = f" ({listed(modules)})" if position else ""
        parts.append(f"{count} in {spoken(dtype)}{where}")
    return f"matrix products: {', '.join(parts)}"


def _place(product: Product) -> str:
    if product.module is None:
        return "outside the model"
    return product.module or "the model itself"


def _words(dtypes: Any) -> str:
    return ", ".join(spoken(dtype) for dtype in dtypes)
