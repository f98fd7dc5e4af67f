"""A study as a page: the verdict first, then the evidence, and what a person must decide."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from halfguard.records.rounding import RoundingReport
from halfguard.records.sizes import format_bytes
from halfguard.records.study import (
    Approval,
    CheckItem,
    Comparison,
    Curve,
    RunResult,
    Study,
    TrainingStats,
    Verdict,
    VerdictLabel,
)
from halfguard.report.blocks import Block, Code, Figure, Heading, Mono, Page, Table, Text, Tone
from halfguard.report.curves import Line, Series, draw_curves, gather_columns
from halfguard.report.rounding import describe
from halfguard.report.svg import percent_label

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
        yield Text(
            "Speed is the duration of the baseline's runs divided by that of the candidate's runs."
        )
        return
    yield Text(
        "Speed is the baseline's step time divided by the candidate's, measured alternately. The ",
        "norm is the median ratio of gradient norms at the same step and seed. If it is far ",
        "below 1, gradients vanish.",
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
    meaning = "the line is the mean over seeds, and the band spans the lowest to the highest value."
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
    yield Text("Digest of the study ", Mono(verdict.evidence), ".")
    places = {json.dumps(run.environment, sort_keys=True): run.environment for run in study.runs}
    for place in places.values():
        if place:
            yield Text(", ".join(f"{name} {value}" for name, value in place.items()))
    rows = [_run(run, verdict.metric) for run in study.runs[:_ROWS]]
    yield Table(("run", "seed", verdict.metric, "steps", "skipped", "seconds", "failure"), rows)
    if len(study.runs) > _ROWS:
        yield Text(f"{len(study.runs) - _ROWS} more runs are in the folder of the study.")


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


_NAMED = 2  # candidates of one verdict that a title names; of more it says the number
_VERBS = {  # for one candidate, and for several
    VerdictLabel.FAIL: ("FAILS", "FAIL"),
    VerdictLabel.MARGINAL: ("is MARGINAL", "are MARGINAL"),
    VerdictLabel.INCONCLUSIVE: ("is INCONCLUSIVE", "are INCONCLUSIVE"),
    VerdictLabel.PASS: ("PASSES", "PASS"),
}
_ANSWERS = {"yes": "yes", "no": "NO", "unknown": "not known", "person": "for a person"}


def study_page(
    study: Study,
    verdict: Verdict,
    approval: Approval | None = None,
    lost_digits: Mapping[str, RoundingReport] | None = None,
) -> Page:
    """Return the page of a study: ``approval`` is its sign-off, ``lost_digits`` are by candidate."""
    signed = approval is not None and approval.covers(study.digest(), verdict)
    blocks: list[Block] = [
        *verdict_section(verdict),
        *_lost_digits(lost_digits or {}),
        *_question(study, verdict),
        *cost_section(study, verdict),
        *training_section(study, verdict),
        *_checklist(verdict, approval, signed=signed),
        *_way_back(verdict),
        *_signature(approval, signed=signed),
        *evidence_section(study, verdict),
    ]
    torch = next((run.environment["torch"] for run in study.runs if "torch" in run.environment), "")
    return Page(f"{study.name}: {outcome_title(verdict, f' on {verdict.metric}')}", blocks, torch)


def outcome_title(verdict: Verdict, metric: str = "") -> str:
    """Return who fails and who passes, the failures first, such as ``a FAILS on auc, b PASSES``."""
    found = []
    for word, verb in _VERBS.items():
        names = [row.candidate for row in verdict.comparisons if row.word is word]
        if len(names) > _NAMED:
            found.append(f"{len(names)} candidates {verb[1]}")
        elif names:
            found.append(f"{' and '.join(names)} {verb[len(names) > 1]}")
    first, *others = found or [str(verdict.word)]
    return ", ".join([f"{first}{metric}", *others])


def _tone(word: VerdictLabel) -> Tone:
    return {VerdictLabel.PASS: "good", VerdictLabel.FAIL: "bad"}.get(word, "")  # type: ignore[return-value]


def verdict_section(verdict: Verdict) -> Iterator[Block]:
    """Yield the verdict on every candidate, with its interval, its reason and the notes."""
    yield Table(
        ("candidate", "verdict", "loss", "95% interval", "seeds", "p of PASS", "further seeds"),
        [_comparison(row) for row in verdict.comparisons],
        [_tone(row.word) for row in verdict.comparisons],
    )
    for row in verdict.comparisons:
        yield Text(Mono(row.candidate), f": {row.word}. {row.reason}")
    for note in verdict.notes:
        yield Text(f"Note: {note}")


def _comparison(row: Comparison) -> list[str]:
    further = ""
    if row.word is VerdictLabel.INCONCLUSIVE:
        close = "too close" if math.isfinite(row.loss) else ""
        further = f"about {row.further_seeds}" if row.further_seeds is not None else close
    numbers = ["", "", str(row.pairs), ""]
    if math.isfinite(row.loss):
        between = f"{row.low:z.2%} to {row.high:z.2%}"
        numbers = [f"{row.loss:z.2%}", between, str(row.pairs), f"{row.p_pass:.2g}"]
    return [Mono(row.candidate), row.word, *numbers, further]


def _lost_digits(reports: Mapping[str, RoundingReport]) -> Iterator[Block]:
    """Yield the lines that lose the digits of a candidate that failed."""
    for candidate, report in reports.items():
        yield Text(
            Mono(candidate), f": lines that lose accuracy in one step in {report.precision}:"
        )
        for found in report.findings:
            yield Text(Mono(found.place), ": ", Mono(found.code), ". ", describe(found), tone="bad")
        if not report.findings:
            yield Text(f"{str(report).capitalize()}.")


def _question(study: Study, verdict: Verdict) -> Iterator[Block]:
    yield Heading("The question")
    better = "higher" if verdict.higher_is_better else "lower"
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in study.runs}))
    steps = max((run.steps for run in study.runs), default=0)
    length = f"{steps} steps; " if steps else ""  # a script may not report them
    yield Text("Does ", Mono(verdict.metric), f" ({better} is better) stay within ",
            f"{percent_label(verdict.passing)} of ", Mono(verdict.baseline),
            f"? Up to {percent_label(verdict.marginal)} is marginal, more is a failure. ",
            f"Each seed was run in every precision ({length}seeds {seeds}).")  # fmt: skip
    count = len(verdict.comparisons)
    corrected = f" Corrected for {count} candidates (Holm)." if count > 1 else ""
    yield Text(
        f"PASS, MARGINAL and FAIL are each wrong at most {percent_label(verdict.level)} of the time, ",
        f"if the noise is not heavily skewed.{corrected} A run that fails even though the baseline ",
        "finished is always a FAIL.",
    )


def _checklist(verdict: Verdict, approval: Approval | None, *, signed: bool) -> Iterator[Block]:
    yield Heading("Checklist")
    items = list(verdict.checklist)
    if approval is not None:  # the only item that is answered after the verdict was written
        evidence = (
            f"{approval.by}, {approval.at}"
            if signed
            else (f"the sign-off by {approval.by} is void")
        )
        update = {"answer": "yes" if signed else "no", "evidence": evidence}
        items = [
            item.model_copy(update=update) if item.code == "approved" else item for item in items
        ]
    yield checklist_table("before 16-bit training is used in production", items)


def checklist_table(question: str, items: Sequence[CheckItem]) -> Table:
    """Return the answers as a table, with ``question`` above them."""
    tones: dict[str, Tone] = {"yes": "good", "no": "bad"}
    return Table(
        (question, "answer", "evidence"),
        [[item.item, _ANSWERS[item.answer], item.evidence] for item in items],
        [tones.get(item.answer, "") for item in items],
    )


def _way_back(verdict: Verdict) -> Iterator[Block]:
    yield Heading("Return to FP32")
    key = len(verdict.way_back) == 1 and verdict.way_back[0].startswith("precision: ")
    yield Text("Set one key of the guard's configuration:" if key else "Run this command:")
    yield Code("\n".join(verdict.way_back), "yaml" if key else "bash")


def _signature(approval: Approval | None, *, signed: bool) -> Iterator[Block]:
    yield Heading("Sign-off")
    if approval is None:
        yield Text(
            ("Not signed. After reading the report, run: "),
            Mono("halfguard validate approve RUN --by NAME"),
        )
        return
    name = f"{approval.word} signed by {approval.by} on {approval.at}, evidence {approval.evidence[:12]}."
    if signed:
        yield Text(name, tone=_tone(approval.word))
    else:
        yield Text(f"VOID: the study has changed since then. {name}", tone="bad")
