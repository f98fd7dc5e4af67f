"""A replayed incident as a page: what happened, where it began, what was tried, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.autopsy import (
    FAR,
    Autopsy,
    Culprit,
    Cure,
    ReplayTrial,
    TensorRange,
    is_source_patch,
)
from halfguard.records.step import Action
from halfguard.report.blocks import Block, Code, Heading, Listing, Mono, Page, Table, Text

_ACTIONS = {
    Action.SKIP: "was skipped",
    Action.RETRY: "was repeated in FP32",
    Action.ROLL_BACK: "made the run roll back to a snapshot",
    Action.HALT: "stopped the run",
}
_LANGUAGES = {"operation": "diff", "weights": "python"}
_COLUMNS = {
    "error": "Error: the relative error of all gradients together, against FP32 as written.",
    "error, meant": "Meant: against a float64 evaluation of the intended formula.",
    "largest scale": "Largest scale: the largest of the loss scales tried at which the step is finite.",
}
SATURATED = 0.05  # difference of the references from which a loss saturates in FP32 too


def autopsy_page(autopsy: Autopsy) -> Page:
    """Return the page of an autopsy; it ends with the recommendation."""
    cause = autopsy.cause.description if autopsy.cause else "no known cause"
    blocks: list[Block] = [*_summary(autopsy), *_what_happened(autopsy), *_repeated(autopsy)]
    if autopsy.culprit is not None:
        blocks += origin_blocks(autopsy.culprit)
    if autopsy.trials:
        blocks += trial_blocks(autopsy.trials, autopsy.saturation)
        blocks += _samples(autopsy)
    blocks += _recommendation(autopsy)
    return Page(f"Incident {autopsy.incident}, step {autopsy.step.step}: {cause}", blocks)


def _summary(autopsy: Autopsy) -> Iterator[Block]:
    culprit, cure = autopsy.culprit, autopsy.cure
    if autopsy.reproduced == "no":
        yield Text(
            "In short: the repeated step did not fail, so the incident does not contain the cause."
        )
    elif culprit is not None:
        subject = culprit.op if culprit.kind == "op" else culprit.name
        did = "overflowed silently" if culprit.swallowed else failure_words(culprit)
        fixed = f"Fix: {fix_words(cure.trial)}." if cure else "None of the changes tried fixes it."
        yield Text("In short: ", Mono(subject), f" {did}, ", *where_parts(culprit), f". {fixed}")


def _what_happened(autopsy: Autopsy) -> Iterator[Block]:
    step = autopsy.step
    yield Heading("What happened")
    yield Text(
        f"Step {step.step} (epoch {step.epoch}, batch {step.batch}) ",
        f"{_ACTIONS.get(step.action, step.action)}: loss {step.loss:.6g}, gradient norm ",
        f"{step.grad_norm:.6g}, loss scale {step.scale:g}. Incident ",
        Mono(autopsy.incident),
        ".",
    )
    if step.evidence:
        yield Text(step.evidence)
    if step.culprits:
        which = "Largest" if math.isfinite(step.grad_norm) else "Non-finite"
        yield Text(f"{which} gradients: ", *_join([Mono(c) for c in step.culprits], ", "), ".")
    if step.batches:
        yield Text("The batch: ", *_join(step.batches, "; "), ".")


def _repeated(autopsy: Autopsy) -> Iterator[Block]:
    yield Heading("Replay")
    result = {
        "bitwise": "The step failed in the same way: loss and gradient norms are bit-identical.",
        "same fault": (
            "The step failed again. No value is finite, so a bit-for-bit comparison is not "
            "possible."
        ),
        "no": "The step did not fail again.",
    }
    yield Text(f"Run in {autopsy.how}. {result[autopsy.reproduced]}")
    if autopsy.differences:
        yield Text("Differences from the original run:")
        yield Listing(autopsy.differences)


def origin_blocks(culprit: Culprit) -> Iterator[Block]:
    """Yield the place where a bad number began: operation, line and ranges."""
    yield Heading("Where it began")
    where = where_parts(culprit)
    if culprit.kind == "op":
        ran = [" (torch ran ", Mono(culprit.kernel), ")"] if culprit.kernel else []
        did = (
            f"has a swallowed {culprit.swallowed}"
            if culprit.swallowed
            else "returned the first NaN or Inf"
        )
        phase = f" {did}" if culprit.optimizer else f" {did}, in the {culprit.phase} pass"
        yield Text(Mono(culprit.op), phase, *ran, ", ", *where, ".")
    else:
        kind = {"input": "The input"}.get(culprit.kind, f"The {culprit.kind}")
        text = f" contained NaN or Inf when the step began. It was first used in the {culprit.phase} pass by "
        yield Text(f"{kind} ", Mono(culprit.name), text, Mono(culprit.op), ", ", *where, ".")
    yield Code(f"{culprit.place}\n    {culprit.code}")
    ranges = [*culprit.inputs, *culprit.outputs]
    if ranges:
        heads = ("tensor", "shape", "dtype", "smallest", "largest", "not finite")
        yield Table(heads, [_range(part) for part in ranges])


def failure_words(culprit: Culprit) -> str:
    """Return what an operation did, or what a tensor was, as the end of a sentence."""
    is_operation = culprit.kind == "op"
    return (
        "returned the first NaN or Inf" if is_operation else "contained NaN or Inf before the step"
    )


def where_parts(culprit: Culprit) -> list[str]:
    """Return the module of an operation, or the optimizer in whose step it ran, as parts of a sentence."""
    if culprit.optimizer:
        return [f"in the optimizer's step ({culprit.optimizer})"]
    if culprit.module is None:
        return ["outside the model"]
    return ["in module ", Mono(culprit.module)] if culprit.module else ["in the model itself"]


def _range(part: TensorRange) -> list[str]:
    bad = {"NaN": part.nan, "+inf": part.posinf, "-inf": part.neginf}
    counts = ", ".join(f"{count} {what}" for what, count in bad.items() if count)
    shape = "x".join(map(str, part.shape)) or "scalar"
    return [Mono(part.name), shape, part.dtype, _number(part.low), _number(part.high), counts]


def trial_blocks(trials: Sequence[ReplayTrial], saturation: float | None = None) -> Iterator[Block]:
    """Yield the table of the changes that were tried, without the columns that no trial fills."""
    yield Heading("What would have prevented it")
    yield Text("Each change was applied separately:")  # to the step, or to the whole script
    columns = {
        "change": [trial.name for trial in trials],
        "step": [_verdict(trial) for trial in trials],
        "loss": [_measured(trial, trial.loss) for trial in trials],
        "gradient norm": [_measured(trial, trial.grad_norm) for trial in trials],
        "error": [_percent(trial.error_as_written) for trial in trials],
        "error, meant": [_percent(trial.error_as_meant) for trial in trials],
        "largest scale": [_scale(trial.largest_scale) for trial in trials],
        "note": [trial.note for trial in trials],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    yield Table(
        tuple(shown),
        [list(row) for row in zip(*shown.values(), strict=True)],
        ["good" if _verdict(trial) == "good" else "bad" for trial in trials],
    )
    meanings = [text for head, text in _COLUMNS.items() if head in shown]
    if meanings:
        yield Text(" ".join(meanings))
    if saturation is not None and saturation > SATURATED:
        text = "The loss saturates in FP32 too: the FP32 gradients as written differ by "
        text += f"{saturation:.0%} from those of the intended formula in float64. "
        yield Text(f"{text}Therefore changes are compared with the intended formula.")


def _verdict(trial: ReplayTrial) -> str:
    """Return whether a step was good; a finite one is not, if its gradients are far from those of FP32."""
    meant = trial.error_as_meant
    error = trial.error_as_written if meant is None else meant
    if trial.good and (error or 0) > FAR:
        return "finite, but far from FP32"
    return "good" if trial.good else "bad"


def _measured(trial: ReplayTrial, value: float) -> str:
    # NaN is a result only of a trial that ran and failed; a good one was not measured.
    ran = not (":" in trial.note and math.isnan(trial.loss))
    return f"{value:.6g}" if math.isfinite(value) or (ran and not trial.good) else ""


def _scale(scale: float | None) -> str:
    return "" if scale is None else f"{scale:g}" if scale else "none"


def _samples(autopsy: Autopsy) -> Iterator[Block]:
    if autopsy.samples:
        shown = ", ".join(map(str, autopsy.samples))
        one = len(autopsy.samples) == 1
        text = f"Sample{'' if one else 's'} {shown} (counted from 0) of micro-batch {autopsy.micro_batch}"
        yield Text(f"{text} {'causes' if one else 'cause'} it.")


def _recommendation(autopsy: Autopsy) -> Iterator[Block]:
    if autopsy.reproduced == "no":
        yield Heading("Possible causes")
        yield Text("No cause was found. Possible causes:")
        yield Listing(autopsy.suspects)
        return
    yield Heading("Recommendation")
    if autopsy.cure is None:
        yield Text("None of the changes tried fixes this step.", tone="bad")
        yield Text(
            "Change the computation at its origin. The ranges above show which values overflow."
        )
        return
    yield from cure_blocks(autopsy.cure)


def cure_blocks(cure: Cure) -> Iterator[Block]:
    """Yield a cure: its sentence, the trial that showed it, and its patch."""
    yield Text(cure.sentence, tone="good")
    yield Text("Tested: ", cure.trial, ".")
    if cure.scale is not None:
        text = f"Start with a loss scale of {cure.scale:g}: "
        yield Text(text, "the gradients of this step overflow at the initial scale.")
    if cure.patch:
        if is_source_patch(cure.patch):
            yield Text(
                "Save these lines as fix.patch and apply them: ", Mono("patch -p1 < fix.patch")
            )
        language = "diff" if is_source_patch(cure.patch) else _LANGUAGES.get(cure.what, "yaml")
        yield Code(cure.patch, language)


def fix_words(trial: str) -> str:
    """Return a trial as an instruction, such as "compute this line in FP32"."""
    if trial.startswith("At "):  # a sentence already
        return trial.replace("At ", "at ", 1)
    return f"compute {trial}" if trial.lower().endswith("in fp32") else f"use {trial}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def _join(parts: list[Mono] | list[str] | tuple[str, ...], between: str) -> list[str]:
    joined: list[str] = []
    for part in parts:
        joined += [between, part] if joined else [part]
    return joined
