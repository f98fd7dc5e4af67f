"""Advice on numbers in 16-bit training: one rule per kind of use, one sentence per fact.

A rule reads the results of an explanation and yields a sentence only if it applies to this value.
A number does not say what it is used for, so a rule guesses from its size and form: a tiny positive
number may be an eps, a very negative one a mask fill, ``w - dw`` an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from halfguard.formats import BF16, FP16, FP32, Format
from halfguard.numerics import exact, expression
from halfguard.numerics.explanation import Explanation, FormatResult, Rounding, percent, show_number

# The formats that training code computes in; the others appear in the table only.
_TRAINING = (FP16, BF16, FP32)
_LARGEST_LOSS_SCALE = 100  # as a power of two; larger ones are not useful
_SHOWN_ERROR = 0.01  # the relative error from which the steps are shown


def find_advice(facts: Explanation) -> list[str]:
    """Return sentences about this value, the most specific first."""
    found = [sentence for rule in _RULES for sentence in rule(facts)]
    return found or list(_precision(facts))


def _not_finite(facts: Explanation) -> Iterator[str]:
    if exact.is_nan(facts.value):
        yield "NaN is NaN in every format. A single NaN makes a sum, mean or gradient norm NaN."
    elif not exact.is_finite(facts.value):
        yield ("Infinity is not NaN, but inf - inf and 0 * inf are. FP8 E4M3FN has no infinity.")


def _as_eps(facts: Explanation) -> Iterator[str]:
    if facts.node.kind not in ("literal", "**") or not 0 < facts.value < 1e-3:
        return
    for result in _training_results(facts):
        name, f = result.format.name, result.format
        if result.stored == 0:
            yield (
                f"As an eps: it is 0 in {name}, so log(x + {facts.text}) is still -inf at x = 0,"
                f" and clamp(min={facts.text}) keeps the zeros. An eps survives in {name} if"
                f" it is larger than {show_number(f.underflow_threshold, 3)}."
            )
        if math.isinf(f.round(exact.divide(1.0, result.stored))):
            yield (
                f"As a divisor: 1 / (x + {facts.text}) is inf at x = 0 in {name}. It is finite for"
                f" an eps of about {show_number(_smallest_divisor(f), 3)} or more."
            )


def _as_gradient(facts: Explanation) -> Iterator[str]:
    result = facts.result_in(FP16)
    if not facts.node.is_literal or result.state not in (
        Rounding.UNDERFLOW,
        Rounding.SUBNORMAL,
    ):
        return
    size = abs(Fraction(facts.value))
    normal = _power_of_two_above(Fraction(FP16.smallest_normal) / size)
    if result.state is Rounding.SUBNORMAL:
        yield (
            "As a gradient: it is subnormal in FP16, and rounded to a multiple of"
            f" {show_number(FP16.smallest_subnormal, 3)}. A loss scale of 2**{normal} makes it a normal"
            " number."
        )
    elif normal < _LARGEST_LOSS_SCALE:
        nonzero = _power_of_two_above(Fraction(FP16.underflow_threshold) / size)
        yield (
            f"As a gradient: it becomes 0 in FP16. A loss scale of 2**{nonzero} makes it non-zero,"
            f" and 2**{normal} makes it a normal number."
        )


def _as_mask(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not exact.is_finite(facts.value):
        return
    refusing = [f.dtype or "" for f in _TRAINING if facts.value < -f.largest]
    if not refusing:
        return
    cast = show_number(facts.result_in(FP16).stored)
    warning = " A row of only -inf makes softmax NaN." if cast == "-inf" else ""
    yield (
        f"As a mask fill: masked_fill raises an error on tensors of {_list(refusing, 'or')}, and a"
        f" cast to FP16 gives {cast}.{warning} Use torch.finfo(x.dtype).min,"
        f" which is {show_number(-FP16.largest)} in FP16."
    )


def _as_update(facts: Explanation) -> Iterator[str]:
    parts = facts.node.operands
    if facts.node.kind not in ("+", "-") or not all(part.is_literal for part in parts):
        return
    w, dw = (expression.evaluate_exactly(part) for part in parts)
    if not 0 < abs(Fraction(dw)) < abs(Fraction(w)):
        return
    grows = (dw > 0) == (w > 0) if facts.node.kind == "+" else (dw > 0) != (w > 0)
    lost = [f for f in _TRAINING if facts.result_in(f).computed == f.round(w)]
    if not lost:
        return
    needed = [f"{show_number(_smallest_change(f, f.round(w), grows), 3)} in {f.name}" for f in lost]
    cure = "FP32 loses it too." if FP32 in lost else "Keep FP32 master weights."
    yield (
        f"As an update: {parts[0].text} does not change in {_list([f.name for f in lost])}. In this"
        f" direction an update must be larger than {_list(needed)}. {cure}"
    )


def _as_decay(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not 0 < facts.value < 1:
        return
    names = [result.format.name for result in _training_results(facts) if result.stored == 1]
    if names:
        yield (
            f"As a decay or a beta: a tensor in {_list(names)} holds 1 instead, and a moving"
            " average with weight 1 on the past never changes."
        )


def _lost_in_steps(facts: Explanation) -> Iterator[str]:
    """Show the steps where rounding them loses more than rounding the result would."""
    paths: dict[str, list[str]] = {}
    for result in _training_results(facts):
        fits = math.isfinite(result.stored) and result.stored != 0
        if len(result.steps) > 1 and fits and (result.relative_error or 0) > _SHOWN_ERROR:
            path = ", then ".join(
                f"{step.text} = {show_number(step.result, 5)}" for step in result.steps
            )
            paths.setdefault(path, []).append(result.format.name)
    for path, names in paths.items():
        yield f"Step by step in {_list(names)}: {path}. The exact result would fit."


def _overflow(facts: Explanation) -> Iterator[str]:
    if not exact.is_finite(facts.value) or (facts.node.is_literal and facts.value < 0):
        return  # a negative number is explained as a mask fill
    beyond = [f for f in _TRAINING if math.isinf(facts.result_in(f).stored)]
    if beyond:
        limits = [f"{f.name} (largest value {show_number(f.largest, 5)})" for f in beyond]
        yield f"Its magnitude is too large for {_list(limits)}: it becomes inf."
    if beyond == [FP16]:
        yield (
            f"FP16 gives inf from {show_number(FP16.overflow_threshold)} up. BF16 has the range"
            f" of FP32 and holds {show_number(facts.result_in(BF16).stored)}."
        )


def _as_integer(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not 0 < facts.value < 2**63:
        return
    rounded = [f for f in _TRAINING if facts.result_in(f).state is Rounding.ROUNDED]
    if rounded and Fraction(facts.value).denominator == 1:
        limits = [f"{f.largest_exact_integer} in {f.name}" for f in rounded]
        yield (
            f"As a count, an index or a position: it changes in {_list([f.name for f in rounded])}."
            f" All integers are exact up to {_list(limits)}. Use an integer dtype."
        )


def _precision(facts: Explanation) -> Iterator[str]:
    results = _training_results(facts)
    if all(result.state is Rounding.EXACT for result in results):
        yield "FP16, BF16 and FP32 hold it exactly."
        return
    lost = [r for r in results if not math.isfinite(r.value) or r.value == 0 != facts.value]
    if lost:
        yield f"It becomes {_list([f'{show_number(r.value)} in {r.format.name}' for r in lost])}."
        return
    errors = [f"{percent(r.relative_error)} in {r.format.name}" for r in results]
    yield f"Only digits are lost. The error is {_list(errors)}."


_RULES: tuple[Callable[[Explanation], Iterator[str]], ...] = (
    _not_finite,
    _as_eps,
    _as_gradient,
    _as_mask,
    _as_update,
    _as_decay,
    _lost_in_steps,
    _overflow,
    _as_integer,
)


def _training_results(facts: Explanation) -> list[FormatResult]:
    return [facts.result_in(f) for f in _TRAINING]


def _smallest_divisor(f: Format) -> float:
    """Return the smallest value whose reciprocal is finite."""
    candidate = f.round(1 / Fraction(f.overflow_threshold))
    while math.isinf(f.round(1 / Fraction(candidate))):
        candidate += f.ulp(candidate)
    return candidate


def _smallest_change(f: Format, start: float, grows: bool) -> float:
    """Return half the distance to the next value; an update must be larger than this."""
    is_power_of_two = math.frexp(abs(start))[0] == 0.5
    closer = not grows and is_power_of_two and abs(start) > f.smallest_normal
    return f.ulp(start) / (4 if closer else 2)


def _power_of_two_above(ratio: Fraction) -> int:
    """Return the smallest k with 2**k > ratio."""
    k = max(0, ratio.numerator.bit_length() - ratio.denominator.bit_length() - 1)
    while Fraction(2) ** k <= ratio:
        k += 1
    return k


def _list(parts: list[str], conjunction: str = "and") -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {conjunction} {parts[-1]}"
