"""What a forward pass really ran in beside what was asked for, with what was seen as evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from halfguard.diagnosis.model.forward import Forward
from halfguard.diagnosis.model.measured_precision import measured, place
from halfguard.diagnosis.model.products import Product
from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import listed, spoken
from halfguard.errors import UsageError
from halfguard.records.diagnosis import Effective

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


def seen_in(subject: Subject, forward: Forward) -> Subject:
    """The subject with what its forward pass showed; a name only where it came to its end."""
    subject = replace(subject, forward=forward)
    if forward.raised is not None:
        return subject
    ran = measured(forward.products, subject.weights)
    subject = replace(subject, ran=ran)
    found = Effective(
        asked=subject.asked, got=ran.name, evidence=tuple(_evidence(subject, forward))
    )
    if subject.asked is None or not found.as_asked:
        found = found.model_copy(update={"why": subject.advice.why})
    return replace(subject, effective=found)


def _evidence(subject: Subject, forward: Forward) -> list[str]:
    facts = [_products(forward)]
    on = dict.fromkeys(p.around.autocast for p in forward.products if p.around.autocast)
    facts.append(f"autocast on {subject.device_type}: {_words(on) or 'off'}")
    facts.append(f"trained weights: {_words(subject.weights) or 'none'}")
    if subject.scaler is None:
        facts.append("loss scale: none")
    else:
        scale = f"{subject.scaler.get_scale():g}" if subject.scales else "switched off"
        facts.append(f"loss scale: {scale}")
    return facts


def _products(forward: Forward) -> str:
    if not forward.products:
        return "no matrix product ran"
    dtypes = {p.dtype for p in forward.products if p.trains} or {p.dtype for p in forward.products}
    facts = f"matrix products: {_counted([p for p in forward.products if p.dtype in dtypes])}"
    aside = [p for p in forward.products if p.dtype not in dtypes]
    return f"{facts}; without gradients: {_counted(aside, unplaced=0)}" if aside else facts


def _counted(products: list[Product], unplaced: int = 1) -> str:
    """How many in which dtype, and in which modules, but for the first and most usual dtype."""
    parts = []
    for position, (dtype, count) in enumerate(Counter(p.dtype for p in products).most_common()):
        modules = dict.fromkeys(place(p.module) for p in products if p.dtype is dtype)
        where = f" ({listed(modules)})" if position >= unplaced else ""
        parts.append(f"{count} in {spoken(dtype)}{where}")
    return ", ".join(parts)


def _words(dtypes: Any) -> str:
    return ", ".join(spoken(dtype) for dtype in dtypes)
