"""The evidence on the page of a study: training statistics, curves, and every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from halfguard.records.sizes import format_bytes
from halfguard.records.study import Curve, RunResult, Study
from halfguard.records.verdict import TrainingStats, Verdict
from halfguard.report.blocks import Block, Figure, Heading, Mono, Table, Text
from halfguard.report.columns import Series, gather_columns
from halfguard.report.curves import Line, draw_curves

_ROWS = 400  # runs that are listed one by one


def cost_section(study: Study, verdict: Verdict) -> Iterator[Block]:
    """Yield speed, memory, skipped steps and gradient norms of every candidate."""
    yield Heading("Speed, memory, steps, gradients")
    heads = (
        "candidate",
        "speed",
        "peak memory",
        "skipped",
        "in FP32",
        "norm / baseline",
        "loss scale",
    )
    yield Table(heads, [_stats(stats) for stats in verdict.efforts])
    if study.spec.get("command"):
        yield Text(["Speed is the duration of the baseline's runs divided by the candidate's."])
        return
    yield Text(
        [
            "Speed is the baseline's step time divided by the candidate's, measured alternately. The ",
            "norm is the median ratio of gradient norms at the same step and seed. If it is far ",
            "below 1, gradients vanish.",
        ]
    )


def _stats(stats: TrainingStats) -> list[str]:
    speed, memory, scale = "", "", ""
    if stats.speed is not None:
        speed = f"{stats.speed:.2f} ({stats.speed_low or 0:.2f} to {stats.speed_high or 0:.2f})"
    if stats.peak_bytes is not None:
        share = f" ({stats.memory:.0%})" if stats.memory is not None else ""
        memory = f"{format_bytes(stats.peak_bytes)}{share}"
    if stats.scale_low is not None and stats.scale_high is not None:
        same = stats.scale_low == stats.scale_high
        low, high = (
            f"{x:g}" if x >= 1 else f"{x:.2g}" for x in (stats.scale_low, stats.scale_high)
        )
        scale = high if same else f"{low} to {high}"
    return [
        Mono(stats.candidate),
        speed,
        memory,
        f"{stats.skipped} of {stats.steps}",
        str(stats.retried),
        f"{stats.norm_ratio:.3g}" if stats.norm_ratio is not None else "",
        scale,
    ]


def training_section(study: Study, verdict: Verdict) -> Iterator[Block]:
    """Yield the curves of loss, gradient norm and loss scale."""
    arms = [verdict.baseline, *(row.candidate for row in verdict.comparisons)]
    if not any(run.curve.steps for run in study.runs):
        return
    yield Heading("Training")
    meaning = "the line is the mean over seeds, the band reaches from the lowest to the highest."
    for field, label, log in (
        ("loss", "training loss", None), ("grad_norm", "gradient norm", True), ("scale", "loss scale", True)
    ):  # fmt: skip
        lines = [
            Line(name, gather_columns(_series(study.runs, name, field)), colour)
            for colour, name in enumerate(arms)
            if field != "scale" or _has_scale(study.runs, name)
        ]
        if not lines:
            continue
        caption = f"{label.capitalize()} over steps: {meaning}"
        caption += " ▾ marks values that are not finite."
        spread = "lowest to highest seed"
        yield Figure(draw_curves(lines, label=label, log=log, spread=spread), caption)


def _has_scale(runs: Sequence[RunResult], name: str) -> bool:
    """Return whether a loss scale was in use; a line at 1 would only compress the others."""
    return any(scale != 1 for run in runs if run.candidate == name for scale in run.curve.scale)


def _series(runs: Sequence[RunResult], name: str, field: str) -> list[Series]:
    curves: list[Curve] = [run.curve for run in runs if run.candidate == name]
    return [(curve.steps, getattr(curve, field)) for curve in curves]


def evidence_section(study: Study, verdict: Verdict) -> Iterator[Block]:
    """Yield every run, its environment, and the digest of the study."""
    yield Heading("Evidence")
    yield Text(["Digest of the study ", Mono(verdict.evidence), "."])
    places = {json.dumps(run.environment, sort_keys=True): run.environment for run in study.runs}
    for place in places.values():
        if place:
            yield Text([", ".join(f"{name} {value}" for name, value in place.items())])
    rows = [_run(run, verdict.metric) for run in study.runs[:_ROWS]]
    yield Table(("run", "seed", verdict.metric, "steps", "skipped", "seconds", "failure"), rows)
    if len(study.runs) > _ROWS:
        yield Text([f"{len(study.runs) - _ROWS} more runs are in the folder of the study."])


def _run(run: RunResult, metric: str) -> list[str]:
    value = run.metrics.get(metric)
    return [
        Mono(run.candidate),
        str(run.seed),
        f"{value:.6g}" if value is not None else "",
        str(run.steps),
        str(run.skipped),
        f"{run.duration:.3g}",
        (run.failure or "")[:200],
    ]
