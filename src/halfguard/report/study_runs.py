"""What a verdict rests on, for the page of a study: the runs in numbers, their training drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from halfguard.records.sizes import size_text
from halfguard.records.study import Curve, RunResult, Study
from halfguard.records.verdict import Effort, Verdict
from halfguard.report.blocks import Block, Figure, Heading, Mono, Table, Text
from halfguard.report.curves import Line, Run, columns, draw

_ROWS = 400  # runs that are listed one by one


def brought(study: Study, verdict: Verdict) -> Iterator[Block]:
    """What each candidate gained and what it took."""
    yield Heading("Speed, memory, steps, gradients")
    heads = ("", "speed", "peak memory", "skipped", "in FP32", "norm / baseline", "loss scale")
    yield Table(heads, [_effort(effort) for effort in verdict.efforts])
    if study.spec.get("command"):
        yield Text(["Speed is the time of the baseline's whole runs over that of the candidate's."])
        return
    yield Text(
        [
            "Speed is the baseline's step time over the candidate's, measured in turns. The norm is ",
            "the median ratio of gradient norms at the same step of the same seed: far below 1, ",
            "gradients vanish.",
        ]
    )


def _effort(effort: Effort) -> list[str]:
    speed, memory, scale = "", "", ""
    if effort.speed is not None:
        speed = f"{effort.speed:.2f} ({effort.speed_low or 0:.2f} to {effort.speed_high or 0:.2f})"
    if effort.peak_bytes is not None:
        share = f" ({effort.memory:.0%})" if effort.memory is not None else ""
        memory = f"{size_text(effort.peak_bytes)}{share}"
    if effort.scale_low is not None and effort.scale_high is not None:
        same = effort.scale_low == effort.scale_high
        low, high = (
            f"{x:g}" if x >= 1 else f"{x:.2g}" for x in (effort.scale_low, effort.scale_high)
        )
        scale = high if same else f"{low} to {high}"
    return [
        Mono(effort.candidate),
        speed,
        memory,
        f"{effort.skipped} of {effort.steps}",
        str(effort.retried),
        f"{effort.norm_ratio:.3g}" if effort.norm_ratio is not None else "",
        scale,
    ]


def training(study: Study, verdict: Verdict) -> Iterator[Block]:
    """Loss, gradient norm and scale, drawn."""
    arms = [verdict.baseline, *(row.candidate for row in verdict.comparisons)]
    if not any(run.curve.steps for run in study.runs):
        return
    yield Heading("Training")
    said = "the line is the mean over seeds, the band reaches from the lowest to the highest."
    for field, label, log in (
        ("loss", "training loss", None), ("grad_norm", "gradient norm", True), ("scale", "loss scale", True)
    ):  # fmt: skip
        lines = [
            Line(name, columns(_numbers(study.runs, name, field)), colour)
            for colour, name in enumerate(arms)
            if field != "scale" or _scaled(study.runs, name)
        ]
        if not lines:
            continue
        caption = f"{label.capitalize()} over steps: {said}"
        yield Figure(
            draw(lines, label=label, log=log), f"{caption} ▾ marks numbers that are not finite."
        )


def _scaled(runs: Sequence[RunResult], name: str) -> bool:
    """Whether a loss scale was in use; a line at 1 would only squeeze the others."""
    return any(scale != 1 for run in runs if run.candidate == name for scale in run.curve.scale)


def _numbers(runs: Sequence[RunResult], name: str, field: str) -> list[Run]:
    curves: list[Curve] = [run.curve for run in runs if run.candidate == name]
    return [(curve.steps, getattr(curve, field)) for curve in curves]


def evidence(study: Study, verdict: Verdict) -> Iterator[Block]:
    """Every run, where it ran, and the digest of it all."""
    yield Heading("Evidence")
    yield Text(["Digest of the study ", Mono(verdict.evidence), "."])
    places = {json.dumps(run.environment, sort_keys=True): run.environment for run in study.runs}
    for place in places.values():
        if place:
            yield Text([", ".join(f"{name} {value}" for name, value in place.items())])
    rows = [_run(run, verdict.metric) for run in study.runs[:_ROWS]]
    yield Table(("run", "seed", verdict.metric, "steps", "skipped", "seconds", "failure"), rows)
    if len(study.runs) > _ROWS:
        yield Text([f"{len(study.runs) - _ROWS} more runs are in the study's folder."])


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
