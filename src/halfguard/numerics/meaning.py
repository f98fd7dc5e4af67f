"""What a number in 16 bits means for training: one rule a kind of use, one sentence a fact.

A rule reads the finished rows of an explanation and says something only where it is true of this
value. A number has no label, so that a rule goes by its looks: a tiny positive one is read as an
eps, a hugely negative one as a mask fill, ``w - dw`` as an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from halfguard.formats import BF16, FP16, FP32, Format
from halfguard.numerics import exact, expression
from halfguard.numerics.explanation import Explanation, Row, State, percent, show

# The formats that training code computes in; the others appear in the table only.
_TRAINING = (FP16, BF16, FP32)
_LARGEST_LOSS_SCALE = 100  # as a power of two; beyond it the advice would be idle
_HARM = 0.01  # the relative error from which the steps are shown


def sentences(facts: Explanation) -> list[str]:
    """Return what matters about this value, the most specific first."""
    found = [sentence for rule in _RULES for sentence in rule(facts)]
    return found or list(_precision(facts))


def _not_finite(facts: Explanation) -> Iterator[str]:
    if exact.is_nan(facts.value):
        yield "NaN is NaN in every format. One of them makes a sum, a mean or a gradient norm NaN."
    elif not exact.is_finite(facts.value):
        yield (
            "An infinity is not yet NaN, but inf - inf and 0 * inf are. FP8 E4M3FN has no infinity."
        )


def _as_eps(facts: Explanation) -> Iterator[str]:
    if facts.node.kind not in ("literal", "**") or not 0 < facts.value < 1e-3:
        return
    for row in _training_rows(facts):
        name, f = row.format.name, row.format
        if row.stored == 0:
            yield (
                f"As an eps: it is 0 in {name}, so that log(x + {facts.text}) is still -inf at"
                f" x = 0, and clamp(min={facts.text}) keeps the zeros. An eps survives in {name} if"
                f" it is larger than {show(f.underflow_threshold, 3)}."
            )
        if math.isinf(f.round(exact.divide(1.0, row.stored))):
            yield (
                f"As a divisor: 1 / (x + {facts.text}) is inf at x = 0 in {name}; it is finite from"
                f" an eps of about {show(_smallest_divisor(f), 3)} on."
            )


def _as_gradient(facts: Explanation) -> Iterator[str]:
    row = facts.row(FP16)
    if not facts.node.is_literal or row.state not in (State.UNDERFLOW, State.SUBNORMAL):
        return
    size = abs(Fraction(facts.value))
    normal = _power_of_two_above(Fraction(FP16.smallest_normal) / size)
    if row.state is State.SUBNORMAL:
        yield (
            "As a gradient: it is a subnormal in FP16, rounded to a multiple of"
            f" {show(FP16.smallest_subnormal, 3)}. A loss scale of 2**{normal} makes it a normal"
            " number."
        )
    elif normal < _LARGEST_LOSS_SCALE:
        alive = _power_of_two_above(Fraction(FP16.underflow_threshold) / size)
        yield (
            f"As a gradient: it vanishes in FP16. A loss scale of 2**{alive} makes it non-zero,"
            f" one of 2**{normal} a normal number."
        )


def _as_mask(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not exact.is_finite(facts.value):
        return
    refusing = [f.dtype or "" for f in _TRAINING if facts.value < -f.largest]
    if not refusing:
        return
    fate = show(facts.row(FP16).stored)
    harm = " A row of nothing but -inf makes softmax NaN." if fate == "-inf" else ""
    yield (
        f"As a mask fill: masked_fill raises an error on a tensor of {_list(refusing, 'or')}, and a"
        f" cast to FP16 gives {fate}.{harm} Use torch.finfo(x.dtype).min,"
        f" {show(-FP16.largest)} in FP16."
    )


def _as_update(facts: Explanation) -> Iterator[str]:
    parts = facts.node.operands
    if facts.node.kind not in ("+", "-") or not all(part.is_literal for part in parts):
        return
    w, dw = (expression.evaluate_exactly(part) for part in parts)
    if not 0 < abs(Fraction(dw)) < abs(Fraction(w)):
        return
    grows = (dw > 0) == (w > 0) if facts.node.kind == "+" else (dw > 0) != (w > 0)
    lost = [f for f in _TRAINING if facts.row(f).computed == f.round(w)]
    if not lost:
        return
    needed = [f"{show(_smallest_change(f, f.round(w), grows), 3)} in {f.name}" for f in lost]
    cure = "Even FP32 loses it." if FP32 in lost else "Keep FP32 master weights."
    yield (
        f"As an update: {parts[0].text} stays as it is in {_list([f.name for f in lost])}. To move"
        f" it this way, a change has to be larger than {_list(needed)}. {cure}"
    )


def _as_decay(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not 0 < facts.value < 1:
        return
    names = [row.format.name for row in _training_rows(facts) if row.stored == 1]
    if names:
        yield (
            f"As a decay or a beta: a tensor in {_list(names)} holds 1 instead, and a moving"
            " average with weight 1 on the past never moves."
        )


def _on_the_way(facts: Explanation) -> Iterator[str]:
    """Say where the steps do harm that storing the result would not have done."""
    paths: dict[str, list[str]] = {}
    for row in _training_rows(facts):
        fits = math.isfinite(row.stored) and row.stored != 0
        if len(row.steps) > 1 and fits and (row.relative_error or 0) > _HARM:
            path = ", then ".join(f"{step.text} = {show(step.result, 5)}" for step in row.steps)
            paths.setdefault(path, []).append(row.format.name)
    for path, names in paths.items():
        yield f"Step by step in {_list(names)}: {path}. The exact result would have fitted."


def _overflow(facts: Explanation) -> Iterator[str]:
    if not exact.is_finite(facts.value) or (facts.node.is_literal and facts.value < 0):
        return  # a negative number is explained as a mask fill
    beyond = [f for f in _TRAINING if math.isinf(facts.row(f).stored)]
    if beyond:
        limits = [f"{f.name} (largest value {show(f.largest, 5)})" for f in beyond]
        yield f"Its magnitude is beyond {_list(limits)}, and becomes inf."
    if beyond == [FP16]:
        yield (
            f"FP16 gives inf from {show(FP16.overflow_threshold)} on. BF16 has the range of FP32,"
            f" and holds {show(facts.row(BF16).stored)}."
        )


def _as_integer(facts: Explanation) -> Iterator[str]:
    if not facts.node.is_literal or not 0 < facts.value < 2**63:
        return
    rounded = [f for f in _TRAINING if facts.row(f).state is State.ROUNDED]
    if rounded and Fraction(facts.value).denominator == 1:
        limits = [f"{f.largest_exact_integer} in {f.name}" for f in rounded]
        yield (
            f"As a count, an index or a position: it changes in {_list([f.name for f in rounded])}."
            f" All integers are exact up to {_list(limits)}; keep them in an integer type."
        )


def _precision(facts: Explanation) -> Iterator[str]:
    rows = _training_rows(facts)
    if all(row.state is State.EXACT for row in rows):
        yield "FP16, BF16 and FP32 hold it exactly."
        return
    lost = [row for row in rows if not math.isfinite(row.result) or row.result == 0 != facts.value]
    if lost:
        yield f"It becomes {_list([f'{show(row.result)} in {row.format.name}' for row in lost])}."
        return
    errors = [f"{row.format.name} by {percent(row.relative_error)}" for row in rows]
    yield f"Only digits are lost: {_list(errors)}."


_RULES: tuple[Callable[[Explanation], Iterator[str]], ...] = (
    _not_finite,
    _as_eps,
    _as_gradient,
    _as_mask,
    _as_update,
    _as_decay,
    _on_the_way,
    _overflow,
    _as_integer,
)


def _training_rows(facts: Explanation) -> list[Row]:
    return [facts.row(f) for f in _TRAINING]


def _smallest_divisor(f: Format) -> float:
    """Return the smallest value whose reciprocal is finite."""
    candidate = f.round(1 / Fraction(f.overflow_threshold))
    while math.isinf(f.round(1 / Fraction(candidate))):
        candidate += f.ulp(candidate)
    return candidate


def _smallest_change(f: Format, start: float, grows: bool) -> float:
    """Return half the distance to the next value, which is what a change has to exceed."""
    is_power_of_two = math.frexp(abs(start))[0] == 0.5
    closer = not grows and is_power_of_two and abs(start) > f.smallest_normal
    return f.ulp(start) / (4 if closer else 2)


def _power_of_two_above(ratio: Fraction) -> int:
    """Return the smallest k with 2**k > ratio."""
    k = max(0, ratio.numerator.bit_length() - ratio.denominator.bit_length() - 1)
    while Fraction(2) ** k <= ratio:
        k += 1
    return k


def _list(parts: list[str], word: str = "and") -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}"
