"""A study as a page: the verdict first, then the evidence, and what a person must decide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.study import Study
from halfguard.records.verdict import Approval, CheckItem, Comparison, Verdict, VerdictLabel
from halfguard.report.axes import percent_label
from halfguard.report.blocks import Block, Code, Heading, Mono, Page, Table, Text, Tone
from halfguard.report.study_runs import cost_section, evidence_section, training_section

_NAMED = 2  # candidates of one verdict that a title names; of more it says the number
_VERBS = {  # for one candidate, and for several
    VerdictLabel.FAIL: ("FAILS", "FAIL"),
    VerdictLabel.MARGINAL: ("is MARGINAL", "are MARGINAL"),
    VerdictLabel.INCONCLUSIVE: ("is INCONCLUSIVE", "are INCONCLUSIVE"),
    VerdictLabel.PASS: ("PASSES", "PASS"),
}
_ANSWERS = {"yes": "yes", "no": "NO", "unknown": "not known", "person": "for a person"}


def study_page(study: Study, verdict: Verdict, approval: Approval | None = None) -> Page:
    """Return the page of a study; ``approval`` is its sign-off, if there is one."""
    signed = approval is not None and approval.covers(study.digest(), verdict)
    blocks: list[Block] = [
        *verdict_section(verdict),
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
        yield Text([Mono(row.candidate), f": {row.word}. {row.reason}"])
    for note in verdict.notes:
        yield Text([f"Note: {note}"])


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


def _question(study: Study, verdict: Verdict) -> Iterator[Block]:
    yield Heading("What was asked")
    better = "higher" if verdict.higher_is_better else "lower"
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in study.runs}))
    steps = max((run.steps for run in study.runs), default=0)
    length = f"{steps} steps; " if steps else ""  # a script may not report them
    yield Text(
        [
            "Does ", Mono(verdict.metric), f" ({better} is better) stay within ",
            f"{percent_label(verdict.passing)} of ", Mono(verdict.baseline),
            f"? Up to {percent_label(verdict.marginal)} is marginal, more is a failure. ",
            f"Each seed was run in every precision ({length}seeds {seeds}).",
        ]
    )  # fmt: skip
    count = len(verdict.comparisons)
    corrected = f" Corrected for {count} candidates (Holm)." if count > 1 else ""
    yield Text(
        [
            f"PASS, MARGINAL and FAIL are each wrong at most {percent_label(verdict.level)} of the time, ",
            f"if the noise is not heavily skewed.{corrected} A run that breaks although the baseline ",
            "finished is always a FAIL.",
        ]
    )


def _checklist(verdict: Verdict, approval: Approval | None, *, signed: bool) -> Iterator[Block]:
    yield Heading("Checklist")
    items = list(verdict.checklist)
    if approval is not None:  # the only item that is answered after the verdict was written
        evidence = f"{approval.by}, {approval.at}" if signed else f"that of {approval.by} is void"
        update = {"answer": "yes" if signed else "no", "evidence": evidence}
        items = [
            item.model_copy(update=update) if item.code == "approved" else item for item in items
        ]
    yield checklist_table("before 16-bit training goes into production", items)


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
    yield Text(["Set one key of the guard's configuration:" if key else "Run this command:"])
    yield Code("\n".join(verdict.way_back), "yaml" if key else "bash")


def _signature(approval: Approval | None, *, signed: bool) -> Iterator[Block]:
    yield Heading("Sign-off")
    if approval is None:
        yield Text(
            ["Not signed. After reading: ", Mono("halfguard validate approve RUN --by NAME")]
        )
        return
    name = f"{approval.word} signed by {approval.by} on {approval.at}, evidence {approval.evidence[:12]}."
    if signed:
        yield Text([name], _tone(approval.word))
    else:
        yield Text([f"VOID: the study has changed since. {name}"], "bad")
