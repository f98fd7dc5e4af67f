"""The answer of ``halfguard why`` as a page: the blocks of an autopsy, or what a good run shows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.records.script_answer import ScriptAnswer
from halfguard.report.autopsy import cure_blocks, module_parts, origin_blocks, trial_blocks
from halfguard.report.blocks import Block, Code, Heading, Listing, Mono, Page, Table, Text

_FP32 = {
    "fine": "In FP32 this step is fine.",
    "fails": "In FP32 this step fails as well: 16 bits are not to blame.",
    "unknown": "Whether FP32 would have been fine is not known.",
}
_TITLES = {
    "nothing bad": "No bad number in {backward} backward passes",
    "crashed": "The script crashed, but no number was bad",
    "interrupted": "Interrupted after {backward} backward passes; no number was bad so far",
    "no training": "The script ran no backward pass",
}


def script_answer_page(answer: ScriptAnswer) -> Page:
    """Return the page of an answer; it ends with what to do."""
    if answer.outcome == "bad number":
        title = f"Step {answer.step}: the first bad number was in {answer.event}"
        if "step" in answer.event.split()[:3] or answer.event.startswith("the loss scale"):
            title = f"Step {answer.step}: {answer.event}"
        return Page(title, [*_bad_number(answer), *_limits(answer)])
    title = _TITLES[answer.outcome].format(backward=answer.backward)
    return Page(title, [*_good_run(answer), *_limits(answer)])


def _bad_number(answer: ScriptAnswer) -> Iterator[Block]:
    yield from _summary(answer)
    yield Heading("What happened")
    scale = f", loss scale {answer.scale:g}" if answer.scale != 1 else ""
    number = (
        ""
        if math.isnan(answer.loss) and answer.bad_backward
        else f" Loss {answer.loss:.6g}{scale}."
    )
    yield Text(
        [Mono(answer.script), f"{_ran(answer)} Then a number was bad: {answer.event}.{number}"]
    )
    if answer.rank is not None:
        yield Text([f"It began on rank {answer.rank}."])
    if answer.loss_scale:
        yield Text([f"The scaler: {answer.loss_scale}."])
    if answer.error:
        yield Text([f"The script ended by {answer.error}"])
    if answer.repeated:
        yield Text([answer.repeated])
    if answer.culprit is not None:
        yield from origin_blocks(answer.culprit, answer.way)
        if answer.exact:
            yield Text([answer.exact])
    if answer.trials:
        yield from trial_blocks(answer.trials)
    yield from _recommendation(answer)


def _summary(answer: ScriptAnswer) -> Iterator[Block]:
    culprit = answer.culprit
    if culprit is None:
        yield Text(["In short: a number was bad, but the operation that made it is not known."])
        return
    subject = culprit.op if culprit.kind == "op" else culprit.name
    did = "made the first bad number" if culprit.kind == "op" else "was bad before the step"
    place = [" at ", Mono(culprit.place)] if culprit.file else []
    fixed = f" Fixed by: {answer.cure.trial}." if answer.cure else ""
    yield Text(
        [
            "In short: ",
            Mono(subject),
            f" {did}, ",
            *module_parts(culprit.module),
            *place,
            f". {_FP32[answer.in_fp32]}{fixed}",
        ]
    )


def _recommendation(answer: ScriptAnswer) -> Iterator[Block]:
    yield Heading("Recommendation")
    if answer.cure is not None:
        yield from cure_blocks(answer.cure)
    elif answer.advice:
        yield Text([answer.advice], "bad")
        yield Text(["This was not tested: no change that could be tried makes the step good."])
    else:
        yield Text(["No cure is known."], "bad")
    if answer.incident:
        yield Text(["The bad step is kept in ", Mono(answer.incident), "."])
        yield Code(f"halfguard replay {answer.incident} --entry FILE.py:FUNCTION")


def _good_run(answer: ScriptAnswer) -> Iterator[Block]:
    yield Heading("What happened")
    last = "" if math.isnan(answer.loss) else f" Last loss: {answer.loss:.6g}."
    yield Text([Mono(answer.script), _ran(answer) + last])
    if answer.error:
        yield Text([answer.error], "bad")
    if answer.log:
        yield Code(answer.log)
    if answer.loss_scale:
        text = f"The scaler: {answer.loss_scale}."
        if not answer.loss_scale.endswith("; 0 steps skipped"):
            text += " Skipped steps are how a loss scale finds its level; no event."
        yield Text([text])
    if answer.headroom:
        yield Text([answer.headroom])
    if answer.swallowed:
        yield Heading("Swallowed overflow")
        yield Text(["Numbers left the range of half, and the step went on without them:"])
        rows = [
            [f.op, Mono(f.place), f.fault, f"{f.elements} of {f.numel}"] for f in answer.swallowed
        ]
        yield Table(("operation", "place", "fault", "elements"), rows)
    if answer.findings:
        yield Heading("What lint found in the files that ran")
        yield Listing([f"{f.code} {f.place}: {f.message}" for f in answer.findings])
    if answer.next:
        yield Heading("Next")
        yield Code(answer.next)


def _ran(answer: ScriptAnswer) -> str:
    passes = f"({answer.backward} backward passes) in {answer.seconds:.1f} s"
    return f" ran {answer.steps} optimizer steps {passes}."


def _limits(answer: ScriptAnswer) -> Iterator[Block]:
    if answer.notes:
        yield Heading("Limits of this answer")
        yield Listing(answer.notes)
