"""A comparison as a page: the verdict, the pairs, the curves of the metric, and every run with its seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from halfguard.comparison.compare import ComparedRun, LoggedComparison
from halfguard.comparison.groups import KEYS, RunGroup
from halfguard.records.study import Verdict
from halfguard.report.blocks import Block, Figure, Heading, Mono, Page, Table, Text
from halfguard.report.curves import Line, draw_curves, gather_columns
from halfguard.report.study import checklist_table, outcome_title, verdict_section
from halfguard.report.svg import percent_label

_ROWS = 400  # runs that are listed one by one
_VALUES = {
    "last": "the last value of each run",
    "best": "the best value of each run",
    "tail": "the mean of the last fifth of each run's values",
}


def comparison_page(comparison: LoggedComparison, groups: Sequence[RunGroup]) -> Page:
    """Return the page; ``groups`` are the runs that were compared, for their curves."""
    verdict = comparison.verdict
    blocks: list[Block] = [
        *verdict_section(verdict),
        *_question(comparison),
        *_pairs(comparison),
        *_curves(verdict, groups),
        *_checklist(verdict),
        *_runs(comparison),
    ]
    return Page(f"{verdict.study}: {outcome_title(verdict)}", blocks)


def _question(comparison: LoggedComparison) -> Iterator[Block]:
    verdict = comparison.verdict
    better = "higher" if verdict.higher_is_better else "lower"
    yield Heading("The question")
    yield Text("Does ", Mono(verdict.metric), f" ({better} is better; {_VALUES[comparison.at]}) stay within ",
            f"{percent_label(verdict.passing)} of ", Mono(verdict.baseline),
            f"? Up to {percent_label(verdict.marginal)} is marginal, more is a failure. ",
            f"PASS, MARGINAL and FAIL are each wrong at most {percent_label(verdict.level)} of the time, if ",
            "the noise is not heavily skewed and the runs differ only in precision and seed.",
    )  # fmt: skip


def _pairs(comparison: LoggedComparison) -> Iterator[Block]:
    """Yield the pairing, and where the seeds come from."""
    verdict = comparison.verdict
    names = [verdict.baseline, *(row.candidate for row in verdict.comparisons)]
    paired = {(run.group, run.seed): run for run in comparison.runs if run.paired}
    seeds = sorted({seed for _, seed in paired if seed is not None})
    yield Heading("Pairs")
    sources = Counter(run.seed_source for run in comparison.runs if run.seed is not None)
    if sources:
        counted = (f"{source} ({_count(number)})" for source, number in sources.items())
        yield Text(f"Seeds were read from: {', '.join(counted)}.")
    else:
        keys = ", ".join(KEYS)
        yield Text(
            f"No seed was found. A seed is read from a setting of the run ({keys}), or from the "
            "word seed ",
            "followed by a number in the name of the run or its folder, such as fp16-seed3.",
        )
    if seeds:
        rows = [[str(seed), *(_cell(paired, name, seed) for name in names)] for seed in seeds]
        yield Table(("seed", *names), rows)


def _cell(paired: Mapping[tuple[str, int | None], ComparedRun], name: str, seed: int) -> str:
    run = paired.get((name, seed))
    return "" if run is None else _value(run)


def _value(run: ComparedRun) -> str:
    number = "" if run.value is None else f"{run.value:.6g}"
    return f"{number} ({run.problem})".strip() if run.problem else number


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _curves(verdict: Verdict, groups: Sequence[RunGroup]) -> Iterator[Block]:
    lines = [
        Line(
            group.name,
            gather_columns([(s.steps, s.values) for run in group.runs if (s := run.series)]),
            colour,
        )
        for colour, group in enumerate(groups)
    ]
    yield Heading("Training")
    yield Figure(
        draw_curves(lines, label=verdict.metric),
        f"{verdict.metric} over steps: the line is the mean over runs, and the band spans the "
        "lowest to the highest value. ▾ marks values that are not finite.",
    )


def _checklist(verdict: Verdict) -> Iterator[Block]:
    yield Heading("What the logs show")
    yield checklist_table("question", verdict.checklist)


def _runs(comparison: LoggedComparison) -> Iterator[Block]:
    yield Heading("Runs")
    heads = ("group", "run", "seed", "from", comparison.verdict.metric, "last step", "values")
    yield Table(heads, [_row(run) for run in comparison.runs[:_ROWS]])
    if len(comparison.runs) > _ROWS:
        yield Text(f"{_count(len(comparison.runs) - _ROWS)} more are not listed.")
    trackers = ", ".join(sorted({run.tracker for run in comparison.runs}))
    yield Text(
        f"Read from: {trackers}. Digest of the runs ", Mono(comparison.verdict.evidence), "."
    )


def _row(run: ComparedRun) -> list[str]:
    return [
        Mono(run.group),
        Mono(run.place),
        "" if run.seed is None else str(run.seed),
        run.seed_source,
        _value(run),
        "" if run.last_step is None else str(run.last_step),
        str(run.values) + (f" ({run.nonfinite} not finite)" if run.nonfinite else ""),
    ]
