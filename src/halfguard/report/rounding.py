"""Where the digits of a step go, as a page: what was found in words, and the ten largest lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.records.rounding import LineInFloat, RoundedLine, RoundingReport
from halfguard.report.blocks import Block, Heading, Mono, Page, Table, Text

ROWS = 10
_BAR = 20  # characters of a bar for all of the error
_HEADS = (
    "Each bar is the line's share of the gradient error. The shares add up to 100%; a share is "
    "negative if it compensates for another one. Backward: the share that arises in the backward "
    "pass. Loss: the effect of the line's rounding on the loss, and the root of the sum of "
    "squares of its individual effects, which may cancel out in the sum."
)


def rounding_page(report: RoundingReport, name: str = "") -> Page:
    """Return the page of a report; ``name`` is what was measured, such as ``train.py:job``."""
    return Page(_title(report, name), [*_summary(report), *_lines(report)])


def _title(report: RoundingReport, name: str) -> str:
    subject = f"{name} in {report.precision}" if name else f"This step in {report.precision}"
    if not report.findings:
        return f"{subject}: no line loses more accuracy than rounding requires"
    first = report.findings[0]
    return f"{subject}: one line costs {first.share:.0%} of the error"


def _summary(report: RoundingReport) -> Iterator[Block]:
    for found in report.findings:
        yield Text(Mono(found.place), ": ", Mono(found.code))
        yield Text(describe(found), tone="bad")
    measured, predicted = (
        _relative(error, report.gradient_norm)
        for error in (report.gradient_error, report.gradient_predicted)
    )
    errors = (
        f"Loss error: {report.loss_error:+.3g} of {report.loss:.6g}; {report.loss_predicted:+.3g} "
        f"predicted. Gradient error: {measured:.3g} of the gradient norm; {predicted:.3g} "
        "predicted. Both are measured against the same step in float64. Longest path: "
        f"{report.depth} roundings. Loss scale: {report.scale:g}."
    )
    yield Text(errors)
    for reason in report.not_judged:
        yield Text(f"Not judged: {reason}.")


def describe(found: LineInFloat) -> str:
    """Return what a line costs, and what FP32 there changes, in words."""
    what = f"module {found.calls_module} in this line" if found.calls_module else "this line"
    whose = "the loss" if found.by == "loss" else "the gradients"
    text = f"{what} costs {found.share:.0%} of the error of {whose}".capitalize()
    text += f", {found.cost / found.must:.1f} times the unavoidable rounding error; "
    if math.isnan(found.tried):
        return (
            f"{text}without it the step's error falls from {found.before:.2g} to {found.after:.2g}."
        )
    only = "" if found.confirmed else "only "
    return (
        f"{text}in FP32 the step's error {only}falls from {found.before:.2g} to {found.tried:.2g}."
    )


def _lines(report: RoundingReport) -> Iterator[Block]:
    yield Heading("Largest lines")
    yield Text(_HEADS)
    heads = ("gradients", "", "backward", "loss", "what", "line", "code")
    rows = [_row(line, report) for line in report.lines[:ROWS]]
    yield Table(heads, rows)


def _row(line: RoundedLine, report: RoundingReport) -> list[str]:
    share = _relative(line.gradient, report.gradient_error)
    what = ", ".join(line.ops[:3]) if line.rounding == "operation" else line.rounding
    return [
        f"{share:.0%}",
        "█" * round(_BAR * min(max(share, 0.0), 1.0)),
        f"{_relative(line.backward, line.gradient):.0%}",
        f"{line.loss:+.1e} ({line.loss_rms:.1e})",
        f"{what} in {line.calls_module}" if line.calls_module else what,
        Mono(line.place),
        Mono(line.code),
    ]


def _relative(value: float, whole: float) -> float:
    return value / whole if whole else 0.0
