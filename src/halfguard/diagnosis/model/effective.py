"""The effective precision of a forward pass, compared with the requested one, and the evidence for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from halfguard.diagnosis.model.forward import ObservedForward, Product
from halfguard.diagnosis.model.measured_precision import describe_module, measure_precision
from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.errors import UsageError
from halfguard.formats import dtype_name
from halfguard.records.diagnosis import EffectivePrecision

# Other names that frameworks and people use for each precision.
_OTHER_NAMES = {
    "fp32": ("32", "32-true", "no", "float32", "off"),
    "fp16-mixed": ("16", "16-mixed", "fp16", "float16"),
    "bf16-mixed": ("bf16", "bfloat16"),
    "fp16-true": ("16-true",),
    "bf16-true": (),
    "fp16-weights": (),
    "fp64": ("64", "64-true"),
}


def resolve_precision(precision: Any) -> str | None:
    """Return halfguard's name of a precision, which may be given by a framework's name."""
    if precision is None:
        return None
    given = str(precision).lower().removeprefix("torch.")
    for name, others in _OTHER_NAMES.items():
        if given == name or given in others:
            return name
    raise UsageError(
        f"The precision {precision!r} is unknown, so it cannot be compared with the measured "
        "precision.",
        cure=f"Allowed: {', '.join(_OTHER_NAMES)}; also Lightning's and Accelerate's names for them.",
    )


def add_observations(setup: TrainingSetup, forward: ObservedForward) -> TrainingSetup:
    """Return the setup with its observed forward pass, and with its precision unless the pass raised."""
    setup = replace(setup, forward=forward)
    if forward.error is not None:
        return setup
    measured = measure_precision(forward.products, setup.trained_dtypes)
    setup = replace(setup, measured=measured)
    evidence = tuple(_evidence(setup, forward))
    found = EffectivePrecision(asked=setup.asked, got=measured.name, evidence=evidence)
    if setup.asked is None or not found.as_asked:
        found = found.model_copy(update={"why": setup.advice.why})
    return replace(setup, effective=found)


def _evidence(setup: TrainingSetup, forward: ObservedForward) -> list[str]:
    facts = [_describe_products(forward)]
    on = dict.fromkeys(p.context.autocast for p in forward.products if p.context.autocast)
    facts.append(f"autocast on {setup.device_type}: {_join_dtypes(on) or 'off'}")
    facts.append(f"trained weights: {_join_dtypes(setup.trained_dtypes) or 'none'}")
    scale = "none"
    if setup.scaler is not None:
        scale = f"{setup.scaler.get_scale():g}" if setup.scaler_enabled else "switched off"
    return [*facts, f"loss scale: {scale}"]


def _describe_products(forward: ObservedForward) -> str:
    if not forward.products:
        return "no matrix product ran"
    products = forward.products
    dtypes = {p.dtype for p in products if p.passes_gradient} or {p.dtype for p in products}
    facts = f"matrix products: {_count_by_dtype([p for p in products if p.dtype in dtypes])}"
    others = [p for p in products if p.dtype not in dtypes]
    return f"{facts}; without gradients: {_count_by_dtype(others, unplaced=0)}" if others else facts


def _count_by_dtype(products: list[Product], unplaced: int = 1) -> str:
    """Count products by dtype and list their modules, except for the first ``unplaced`` dtypes."""
    parts = []
    for position, (dtype, count) in enumerate(Counter(p.dtype for p in products).most_common()):
        modules = dict.fromkeys(describe_module(p.module) for p in products if p.dtype is dtype)
        where = f" ({join_names(modules)})" if position >= unplaced else ""
        parts.append(f"{count} in {dtype_name(dtype)}{where}")
    return ", ".join(parts)


def _join_dtypes(dtypes: Any) -> str:
    return ", ".join(dtype_name(dtype) for dtype in dtypes)
