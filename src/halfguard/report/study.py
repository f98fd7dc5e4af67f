"""A study as a page: the verdict first, then what it rests on, drawn, and what is left to a person."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.records.study import Study
from halfguard.records.verdict import CheckItem, Comparison, Standing, Verdict, Word
from halfguard.report.axes import percent
from halfguard.report.blocks import (
    Block,
    Code,
    Figure,
    Heading,
    Listing,
    Mono,
    Page,
    Table,
    Text,
    Tone,
)
from halfguard.report.forest import draw_forest
from halfguard.report.study_runs import brought, evidence, training

_ANSWERS = {"yes": "yes", "no": "NO", "unknown": "not known", "person": "for a person"}


def study_page(study: Study, verdict: Verdict, standing: Standing | None = None) -> Page:
    """All of it; ``standing`` is what the sign-off is worth, where the study has a folder."""
    blocks: list[Block] = [
        *_answer(verdict),
        *_asked(study, verdict),
        *brought(study, verdict),
        *training(study, verdict),
        *_checklist(verdict, standing),
        *_way_back(verdict),
        *_sign_off(verdict, standing),
        *evidence(study, verdict),
    ]
    return Page(f"{study.name}: {verdict.word}", blocks)


def _tone(word: Word) -> Tone:
    return {Word.PASS: "good", Word.FAIL: "bad"}.get(word, "")  # type: ignore[return-value]


def _answer(verdict: Verdict) -> Iterator[Block]:
    yield Table(
        ("candidate", "verdict", "loss", "95% interval", "seeds", "p of PASS", "further seeds"),
        [_comparison(row) for row in verdict.comparisons],
        [_tone(row.word) for row in verdict.comparisons],
    )
    several = (
        " The thin bar holds for all candidates at once." if len(verdict.comparisons) > 1 else ""
    )
    yield Figure(
        draw_forest(verdict),
        f"Loss of {verdict.metric} against {verdict.baseline}: each seed a dot, the thick bar the 95% "
        f"interval.{several} A bar that lies wholly in a field is the verdict.",
    )
    for row in verdict.comparisons:
        yield Text([Mono(row.candidate), f": {row.word}. {row.reason}"])
    for note in verdict.notes:
        yield Text([f"Note: {note}"])


def _comparison(row: Comparison) -> list[str]:
    further = ""
    if row.word is Word.INCONCLUSIVE:
        close = "too close" if math.isfinite(row.loss) else ""
        further = f"about {row.further_seeds}" if row.further_seeds is not None else close
    numbers = ["", "", str(row.pairs), ""]
    if math.isfinite(row.loss):
        between = f"{row.low:z.2%} to {row.high:z.2%}"
        numbers = [f"{row.loss:z.2%}", between, str(row.pairs), f"{row.p_pass:.2g}"]
    return [Mono(row.candidate), row.word, *numbers, further]


def _asked(study: Study, verdict: Verdict) -> Iterator[Block]:
    yield Heading("What was asked")
    way = "higher" if verdict.higher_is_better else "lower"
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in study.runs}))
    when = "looked at after every seed" if verdict.sequential else "judged once"
    steps = max((run.steps for run in study.runs), default=0)
    length = f"{steps} steps; " if steps else ""  # a script need not tell
    yield Text(
        [
            "Does ", Mono(verdict.metric), f" ({way} is better) stay within ",
            f"{percent(verdict.passing)} of ", Mono(verdict.baseline),
            f"? Up to {percent(verdict.marginal)} is marginal, more is a failure. ",
            f"Each seed was run in every precision ({length}seeds {seeds}); {when}.",
        ]
    )  # fmt: skip
    count = len(verdict.comparisons)
    corrected = f" Corrected for {count} candidates (Holm)." if count > 1 else ""
    yield Text(
        [
            f"PASS, MARGINAL and FAIL are each wrong at most {percent(verdict.level)} of the time, ",
            f"for noise that is not heavily skewed.{corrected} A run that breaks where the baseline ",
            "finished is a FAIL by rule.",
        ]
    )


def _checklist(verdict: Verdict, standing: Standing | None) -> Iterator[Block]:
    yield Heading("Checklist")
    items = [_signed(item, standing) for item in verdict.checklist]
    tones: dict[str, Tone] = {"yes": "good", "no": "bad"}
    yield Table(
        ("before 16 bits go into production", "answer", "evidence"),
        [[item.item, _ANSWERS[item.answer], item.evidence] for item in items],
        [tones.get(item.answer, "") for item in items],
    )


def _signed(item: CheckItem, standing: Standing | None) -> CheckItem:
    """The one line that is answered after the verdict was written."""
    if item.code != "approved" or standing is None or standing.approval is None:
        return item
    signed = standing.approval
    if standing.valid:
        told = f"{signed.by}, {signed.at}"
        return item.model_copy(update={"answer": "yes", "evidence": told})
    what = "1 file" if len(standing.changed) == 1 else f"{len(standing.changed)} files"
    told = f"signed by {signed.by}, void: {what} changed since"
    return item.model_copy(update={"answer": "no", "evidence": told})


def _way_back(verdict: Verdict) -> Iterator[Block]:
    yield Heading("The way back to FP32")
    one = "One key of the guard's configuration:"
    key = len(verdict.way_back) == 1 and verdict.way_back[0].startswith("precision: ")
    yield Text([one if key else "One command:"])
    yield Code("\n".join(verdict.way_back), "yaml" if key else "bash")


def _sign_off(verdict: Verdict, standing: Standing | None) -> Iterator[Block]:
    if standing is None:
        return
    yield Heading("Sign-off")
    signed = standing.approval
    if signed is None:
        yield Text(
            ["Not signed. After reading: ", Mono("halfguard validate approve RUN --by NAME")]
        )
        return
    under = f"{signed.word} signed by {signed.by} on {signed.at}, evidence {signed.evidence[:12]}."
    if standing.valid and signed.evidence == verdict.evidence:
        yield Text([under], _tone(signed.word))
        return
    yield Text([f"VOID. {under} Since then it has changed:"], "bad")
    yield Listing([Mono(name) for name in standing.changed[:20]])
