"""The answer of ``halfguard why`` as a page: the blocks of an autopsy, or what a good run shows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from halfguard.catalogue import entry
from halfguard.records.script_answer import ScriptAnswer
from halfguard.report.autopsy import (
    cure_blocks,
    failure_words,
    fix_words,
    origin_blocks,
    trial_blocks,
    where_parts,
)
from halfguard.report.blocks import Block, Code, Heading, Listing, Mono, Page, Table, Text
from halfguard.report.command_line import hide_secrets_in, hide_secrets_in_text

_FP32 = {
    "fine": "In FP32 this step is fine.",
    "fails": "In FP32 this step fails as well, so 16-bit precision is not the cause.",
    "unknown": "It is unknown whether the step is finite in FP32.",
}
_PROVEN, _PATCHED = "the patched script", "the script, patched"  # names of trials
_STEP, _SCRIPT = "the whole step in FP32", "the script in FP32, from its first line"
_TITLES = {
    "nothing bad": "No NaN or Inf in {passes}{skips}{ran_in}",
    "trains wrongly": "{fault}{ran_in}: no NaN or Inf in {passes}, but the result is wrong",
    "crashed": "The script crashed{ran_in}, without NaN or Inf",
    "interrupted": "Interrupted after {passes}{ran_in}: no NaN or Inf so far",
    "no training": "The script ran no backward pass",
}


def script_answer_page(answer: ScriptAnswer) -> Page:
    """Return the page of an answer; it ends with what to do. A page is handed on: its secrets are masked."""
    answer = _without_secrets(answer)
    blocks = _bad_number(answer) if answer.outcome == "non-finite value" else _good_run(answer)
    return Page(_title(answer), [*_code(answer), *blocks, *_limits(answer)])


def _title(answer: ScriptAnswer) -> str:
    """Return the worst finding, and the precision that really ran."""
    ran_in = f" ({answer.precision})" if answer.precision else ""
    if answer.outcome == "non-finite value":
        return f"Step {answer.step}{ran_in}: {answer.event}"
    if answer.exited_early:
        return "The script exited before its first training step"
    overflowed = [one for one in answer.swallowed if one.fault == "overflow"]
    fault = (
        f"An overflow was swallowed at {overflowed[0].place}"
        if overflowed
        else "The script trains wrongly"
    )
    passes = _count(answer.backward, "backward pass", "es")
    skips = ", except where the scaler skipped the step" if _has_skipped(answer) else ""
    return _TITLES[answer.outcome].format(passes=passes, ran_in=ran_in, fault=fault, skips=skips)


def _has_skipped(answer: ScriptAnswer) -> bool:
    return bool(answer.loss_scale) and not answer.loss_scale.endswith("; 0 steps skipped")


def _code(answer: ScriptAnswer) -> Iterator[Block]:
    if answer.code:
        yield Text(f"{answer.code} {entry(answer.code).name}: {entry(answer.code).title}")


def _without_secrets(answer: ScriptAnswer) -> ScriptAnswer:
    commands = {"script": answer.script, "next": answer.next}
    texts = {"error": answer.error, "log": answer.log}
    hidden = {name: hide_secrets_in(text) if text else "" for name, text in commands.items()}
    hidden |= {name: hide_secrets_in_text(text) for name, text in texts.items()}
    return answer.model_copy(update=hidden)


def _bad_number(answer: ScriptAnswer) -> Iterator[Block]:
    yield from _summary(answer)
    yield Heading("What happened")
    scale = f", loss scale {answer.scale:g}" if answer.scale != 1 else ""
    number = (
        ""
        if math.isnan(answer.loss) and answer.bad_backward
        else f" Loss {answer.loss:.6g}{scale}."
    )
    yield Text(Mono(answer.script), f"{_ran(answer)} Then {answer.event}.{number}")
    if answer.rank is not None:
        yield Text(f"It began on rank {answer.rank}.")
    if answer.loss_scale:
        yield Text(f"Scaler: {answer.loss_scale}.")
    if answer.error:
        yield Text(f"The script ended with {answer.error}")
    if answer.repeated:
        yield Text(answer.repeated)
    if answer.culprit is not None:
        yield from origin_blocks(answer.culprit)
        if answer.exact:
            yield Text(answer.exact)
    if answer.trials:
        yield from trial_blocks(answer.trials)
    yield from _recommendation(answer)


def _summary(answer: ScriptAnswer) -> Iterator[Block]:
    culprit = answer.culprit
    if culprit is None:
        yield Text(
            "In short: a value was NaN or Inf, but the operation that returned it is unknown."
        )
        return
    subject = culprit.op if culprit.kind == "op" else culprit.name
    kind = culprit.kind if culprit.kind != "op" else "cast" if culprit.op == "to" else ""
    is_named = culprit.optimizer.endswith(f" {culprit.place}")
    place = [" at ", Mono(culprit.place)] if culprit.file and not is_named else []
    yield Text(
        f"In short: the {kind} " if kind else "In short: ",
        Mono(subject),
        f" {failure_words(culprit)}, ",
        *where_parts(culprit),
        *place,
        *([f". {answer.reason[:1].upper()}{answer.reason[1:]}"] if answer.reason else []),
        *([". The cause is at ", Mono(answer.cause)] if answer.cause else []),
        f". {_in_fp32(answer)}{_fixed(answer)}",
    )


def _in_fp32(answer: ScriptAnswer) -> str:
    """Return whether FP32 helps; a step in FP32 may end otherwise than the script from its first line."""
    good = {trial.name: trial.good for trial in answer.trials}
    step, script = good.get(_STEP), good.get(_SCRIPT)
    if answer.in_fp32 == "fine" and step is False and script:
        return (
            "Run in FP32 from its first line, the script passes this step; with this step alone in "
            "FP32 it does not."
        )
    if answer.in_fp32 == "fails" and step and script is False:
        return (
            "In FP32 this step is fine, but run in FP32 from its first line, the script fails as "
            "well, so 16-bit precision is not the only cause."
        )
    return _FP32[answer.in_fp32]


def _first_sentence(text: str) -> str:
    first = re.split(r"\.(?: (?=[A-Z])|$)", text, maxsplit=1)[0]
    word = first.partition(" ")[0]
    return first[:1].lower() + first[1:] if word[1:].islower() or word == "A" else first


def _fixed(answer: ScriptAnswer) -> str:
    """Return what makes the step good; it is a fix only if the patched script has trained on."""
    if answer.cure is None or not answer.cure.trial:
        return ""
    on_step, proven, _ = answer.cure.trial.partition(_PROVEN)
    how = "by running the patched script from the start" + _how_far(answer)
    if proven and not on_step:
        return f" The patch below was verified {how}."
    if proven:
        return f" Fix: {fix_words(on_step.removesuffix('; '))}. Verified on this step and {how}."
    later = " The patched script failed at a later step." if _refuted(answer) else ""
    return f" Fix for this step: {fix_words(answer.cure.trial)}.{later}"


def _refuted(answer: ScriptAnswer) -> str:
    """Return a sentence about patches that were tested in vain; empty if there was none."""
    in_vain = any(one.name.startswith(_PATCHED) and not one.good for one in answer.trials)
    return " The patches that were tested do not fix the script." if in_vain else ""


def _how_far(answer: ScriptAnswer) -> str:
    """Return how far the patched script was run, if not to its end, or that nothing was compared."""
    ran = next((one for one in answer.trials if one.name.startswith(_PROVEN) and one.good), None)
    if ran is None or not ran.note:
        return ""
    if ran.note.startswith("stopped"):
        return f" ({ran.note}; later steps are untested)"
    return "" if "FP32" in ran.note else " (it was not compared with FP32)"


def _recommendation(answer: ScriptAnswer) -> Iterator[Block]:
    yield Heading("Recommendation")
    if answer.cure is not None:
        yield from cure_blocks(answer.cure)
    if answer.advice:
        yield Text(answer.advice, tone="bad")
        if answer.exited_early:
            return
        yield Text(f"This recommendation was not tested.{_refuted(answer)}")
    elif answer.cure is None:
        yield Text("No fix is known.", tone="bad")


def _good_run(answer: ScriptAnswer) -> Iterator[Block]:
    told = answer.advice if answer.cure is None else answer.cure.sentence
    if told and not answer.exited_early:
        untested = _refuted(answer) or " No fix was tested."
        fixed = untested if answer.cure is None else _fixed(answer)
        yield Text(f"In short: {_first_sentence(told)}.{fixed}")
    yield Heading("What happened")
    last = "" if math.isnan(answer.loss) else f" Last loss: {answer.loss:.6g}."
    yield Text(Mono(answer.script), _ran(answer) + last)
    if answer.error:
        yield Text(answer.error, tone="bad")
    if answer.log:
        yield Code(answer.log)
    if answer.loss_scale:
        text = f"Scaler: {answer.loss_scale}."
        if _has_skipped(answer):
            text += " Skipped steps are normal only at the start, while the loss scale calibrates."
        yield Text(text)
    if answer.headroom:
        yield Text(answer.headroom)
    if answer.swallowed:
        yield Heading("Swallowed overflow")
        yield Text("Values overflowed the 16-bit format, and the step continued with wrong values:")
        rows = [
            [f.op, Mono(f.place), f.fault, f"{f.elements} of {f.numel}"] for f in answer.swallowed
        ]
        yield Table(("operation", "place", "fault", "elements"), rows)
    if answer.trials:
        yield from trial_blocks(answer.trials)
    if answer.cure is not None or answer.advice:
        yield from _recommendation(answer)
    if answer.next:
        yield Heading("Next")
        yield Code(answer.next)


def _ran(answer: ScriptAnswer) -> str:
    steps = _count(answer.steps, "optimizer step")
    passes = _count(answer.backward, "backward pass", "es")
    return f" ran {steps} ({passes}) in {answer.seconds:.1f} s."


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _limits(answer: ScriptAnswer) -> Iterator[Block]:
    if answer.notes:
        yield Heading("Limits of this answer")
        yield Listing(answer.notes)
