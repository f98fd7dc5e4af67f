"""The mismatch of rollout and trainer as a page: the cause first, then the parts and the precisions."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.records.mismatch import Agreement, MismatchReport
from halfguard.report.blocks import Block, Heading, Mono, Page, Table, Text

_HEADS = ("", "mean", "size", "largest", "k3", "chi2", "sample", "outside")


def mismatch_page(report: MismatchReport, name: str = "") -> Page:
    """Return the page of a report; ``name`` is what was measured, such as a file."""
    subject = f"{name}: " if name else ""
    if report.causes:
        title = f"{subject}{', '.join(one.kind for one in report.causes)}"
    else:
        title = f"{subject}rounding explains the mismatch between rollout and trainer"
    blocks = [*_summary(report), *_parts(report), *_precisions(report), *_lines(report)]
    return Page(title, blocks)


def _summary(report: MismatchReport) -> Iterator[Block]:
    for cause in report.causes:
        yield Text(f"{cause.kind.capitalize()}: {cause.sentence}", tone="bad")
    seen = report.observed
    yield Text(
        f"{report.tokens} tokens in {report.sequences} completions. The probability ratio is "
        "outside ",
        f"[{1 - report.clip:.2g}, {1 + report.clip:.2g}] for {seen.outside:.1%} of the tokens. "
        "The mean ",
        f"difference is {seen.mean:+.2g}, and its size is {seen.size:.2g}. Trainer: "
        f"{report.trainer}. The ",
        f"rollout is rounded as in {report.rollout_dtype}.",
    )


def _parts(report: MismatchReport) -> Iterator[Block]:
    yield Heading("Where it comes from")
    rows = [[name, f"{size:.2g}"] for name, size in report.parts.items()]
    yield Table(("part", "size"), rows)
    yield Text("Sizes are root mean squares, so the squares of independent parts add up.")
    positions = [
        [f"{one.first} to {one.last}", f"{one.outside:.1%}", f"{one.size:.2g}"]
        for one in report.lengths
    ]
    yield Table(("tokens of a completion", "outside", "size"), positions)


def _precisions(report: MismatchReport) -> Iterator[Block]:
    yield Heading("The same tokens in other precisions")
    yield Text(
        (
            "The tokens were recomputed with 16-bit weights and compared with FP32. The first row "
            "is the recorded data. Decoded means with a "
        ),
        "KV cache, compared with whole sequences in the same precision.",
    )
    rows = (report.observed, *report.variants, *report.same_precision)
    yield Table(_HEADS, [_row(one) for one in rows])
    yield Text(
        f"BF16 has {report.bf16_over_fp16:.3g} times the k3 of FP16 on these sequences (95% interval ",
        f"{report.ratio_low:.3g} to {report.ratio_high:.3g}, paired). Cheapest precision with at ",
        f"most 1% of the tokens outside, if both sides use it: {report.recommended}.",
    )


def _row(one: Agreement) -> list[str]:
    numbers = (one.mean, one.size, one.largest, one.k3, one.chi2)
    texts = [f"{number:.2g}" for number in numbers]
    return [one.name, *texts, f"{one.sample:.3f}", f"{one.outside:.1%}"]


def _lines(report: MismatchReport) -> Iterator[Block]:
    if report.lines:
        yield Heading("Lines with the largest rounding errors")
        yield from (Text(Mono(line)) for line in report.lines)
