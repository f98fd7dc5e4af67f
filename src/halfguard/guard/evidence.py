"""The text about a bad step: what was seen, and what to do, as far as the evidence goes.

A cause alone does not say enough. NaN gradients have other reasons than infinite ones; a fault that FP32 has
too is no fault of half precision; a loss scale is at its floor, or it is not. What was not tried is unknown,
and the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from halfguard.errors import TrainingHaltedError
from halfguard.guard.batch_checks import IGNORED, BatchFault
from halfguard.guard.config import GuardConfig
from halfguard.guard.fault_report import FaultReport
from halfguard.guard.policy import Decision, Signals, can_help, find_cause
from halfguard.guard.spikes import WINDOW
from halfguard.precision_names import Precision
from halfguard.records import Cause, StepRow


def halt_error(
    row: StepRow, explanation: Explanation, batches: Sequence[str], *, streak: int = 1
) -> TrainingHaltedError:
    """Return the error that ends a run at this step; ``batches`` describes them."""
    parameters = ", ".join(row.culprits) or "no parameter stands out"
    ranks = ", ".join(map(str, row.ranks))
    in_a_row = f" ({streak} consecutive failed steps)" if streak > 1 else ""
    lines = [
        f"Training was stopped at epoch {row.epoch}, batch {row.batch}, step {row.step}{in_a_row}:",
        f"{row.code} {row.cause}: {explanation.evidence}",
        f"loss {row.loss:.4g}, gradient norm {row.grad_norm:.4g}, loss scale {row.scale:g}",
        f"parameters: {parameters}",
        *([f"ranks: {ranks}"] if ranks else []),
        *(f"batch: {text}" for text in batches if text),
        *([row.note] if row.note else []),
    ]
    return TrainingHaltedError("\n".join(lines), cure=explanation.advice)


def describe_recovery(rollbacks: int, remedies: Sequence[str]) -> str:
    """Return sentences about what recovery tried before it gave up."""
    times = "1 time" if rollbacks == 1 else f"{rollbacks} times"
    ladder = f", then tried {', '.join(remedies)}" if remedies else ""
    return f"Recovery rolled back {times}{ladder}. The fault returned each time."


_FIND = "To find the operation, use halfguard replay on the incident, or halfguard.find_first_nonfinite."
_FORWARD = (
    "Look for log(0), 0 / 0, a division by a sum or norm of 0, a softmax over a fully masked row, or a "
    "learning rate that is too high."
)
_BACKWARD = (
    "In the backward pass of these parameters, look for the square root or the norm of 0, 0 * log(0), or a "
    "torch.where over values that are not finite."
)


@dataclass(frozen=True)
class Explanation:
    """What was seen, and what to do next; each one or more sentences."""

    evidence: str
    advice: str


def explain(
    decision: Decision, seen: Signals, found: FaultReport | None, config: GuardConfig
) -> Explanation:
    """Explain a step that has a cause."""
    found = found or FaultReport()
    if decision.cause is not None and find_cause(seen) is None:
        return Explanation(
            (f"In 16-bit precision, {decision.cause.description}. In FP32 the step was finite."), ""
        )
    match decision.cause:
        case Cause.BAD_WEIGHTS:
            return _bad_weights(seen, found, config)
        case Cause.BAD_BATCH:
            return _bad_batch(decision, seen, found, config)
        case Cause.FORWARD_OVERFLOW:
            return _forward(decision, seen, found, config)
        case Cause.GRADIENT_OVERFLOW:
            return _gradients(decision, seen, config)
        case Cause.LOSS_SPIKE | Cause.GRADIENT_SPIKE:
            return _spike(decision.cause, seen, config)
    cause = decision.cause or Cause.DESYNC
    return Explanation(f"{cause.description.capitalize()}.", cause.advice)


def _bad_weights(seen: Signals, found: FaultReport, config: GuardConfig) -> Explanation:
    assert found.bad_weight is not None  # noqa: S101 - the cause says so
    if found.bad_weight.is_state:
        return Explanation(
            f"{found.bad_weight.name} contained NaN before the step, although the weights are finite.",
            "Reset this buffer or hidden state, or return to an earlier checkpoint. Then find what wrote "
            "NaN to it: an earlier step, or code between two steps.",
        )
    what = "gradients" if math.isfinite(seen.loss) else "the loss"
    snapshots = (
        ""
        if config.recovery
        else " With recovery: {} the guard takes snapshots that it can roll back to."
    )
    return Explanation(
        f"The parameter {found.bad_weight.name} contained {found.bad_weight.value} before the step, so "
        f"{what} could not be finite.",
        "Return to an earlier checkpoint, because later steps cannot repair such weights. The cause is an "
        "earlier update (a learning rate that is too high, an eps that is 0 in float16) or code that "
        f"writes to weights.{snapshots}",
    )


def _bad_batch(
    decision: Decision, seen: Signals, found: FaultReport, config: GuardConfig
) -> Explanation:
    what = found.batch_fault or BatchFault.NONFINITE
    evidence = f"{_loss(decision, seen, config)}, and the batch itself is invalid: {what}"
    if what is BatchFault.LABELS:
        evidence += f" (ignore_index {IGNORED})"
    if what is BatchFault.MASK:
        return Explanation(
            f"{evidence}.",
            "A softmax over such a row is 0 / 0. Remove these rows, or exclude them in the model. "
            f"If the model already excludes them, the cause is unknown. {_FIND}",
        )
    return Explanation(f"{evidence}.", Cause.BAD_BATCH.advice)


def _forward(
    decision: Decision, seen: Signals, found: FaultReport, config: GuardConfig
) -> Explanation:
    checked = "weights and batch are" if found.batch_known else "the weights are"
    unknown = "" if found.batch_known else " The guard did not receive the batch."
    evidence = f"{_loss(decision, seen, config)}, and {checked} finite.{unknown}"
    unavoidable = _unavoidable(decision, config)
    if unavoidable:
        return Explanation(evidence, f"{unavoidable} {_FORWARD} {_FIND}")
    if math.isinf(seen.loss):
        why = (
            "Either a value exceeded the FP16 maximum of 65504 (keep that module in FP32; halfguard plan "
            "finds it), or the loss is Inf in FP32 as well, as with log(0) or 1 / 0."
        )
    else:
        why = (
            "NaN results from Inf - Inf, 0 * Inf or 0 / 0, either after an overflow in FP16 or in FP32 as "
            "well (log(0), a fully masked row, a learning rate that is too high)."
        )
    return Explanation(evidence, f"No loss scale prevents this. {why} {_try_fp32(config)} {_FIND}")


def _gradients(decision: Decision, seen: Signals, config: GuardConfig) -> Explanation:
    held = "NaN" if math.isnan(seen.grad_norm) else "Inf but no NaN"
    evidence = f"The loss was finite, but the gradients contained {held}{_in_fp32(decision)}."
    unavoidable = _unavoidable(decision, config)
    if unavoidable:
        return Explanation(evidence, f"{unavoidable} {_BACKWARD} {_FIND}")
    scale, floor = f"{seen.scale:g}", f"{config.scale.floor:g}"
    if decision.scale is not None and decision.scale > 1:
        return Explanation(
            f"{evidence} They also contained NaN at lower loss scales than {scale}, down to 1, while other "
            "steps were applied.",
            f"No loss scale prevents this. {_BACKWARD} {_try_fp32(config)} {_FIND}",
        )
    if can_help(seen, config):
        return Explanation(
            f"{evidence} The loss scale was {scale}; it can fall to {floor}.", _try_fp32(config)
        )
    if seen.scale > 1:
        return Explanation(
            f"{evidence} The loss scale is at its floor of {floor}.",
            f"Lower scale.floor so that the scale can decrease further. {_try_fp32(config)}",
        )
    return Explanation(
        f"{evidence} The loss scale was {scale}, which does not enlarge gradients.",
        "No loss scale prevents this. Either the unscaled gradients overflow FP16 and the layers of these "
        f"parameters must stay in FP32, or the gradients are not finite in FP32 either. {_BACKWARD} "
        f"{_try_fp32(config)} {_FIND}",
    )


def _spike(cause: Cause, seen: Signals, config: GuardConfig) -> Explanation:
    follows = (
        "" if config.spike is None else f", which is computed from the last {WINDOW} applied steps"
    )
    if cause is Cause.LOSS_SPIKE:
        return Explanation(
            f"The loss was {seen.loss:.4g}, above its limit of {seen.limits.loss:.4g}{follows}.",
            cause.advice,
        )
    if not math.isfinite(seen.grad_norm):
        return Explanation(
            "Every gradient was finite, but the norm of all gradients overflowed float32.",
            "Lower the learning rate, or the weight of a loss term that is too large.",
        )
    norm, fixed = f"The gradient norm was {seen.grad_norm:.4g}", config.skip.max_grad_norm
    warm_up = "Lower the learning rate, use a longer warmup, or"
    if fixed is not None and seen.grad_norm > fixed:
        return Explanation(
            f"{norm}, above skip.max_grad_norm of {fixed:g}.",
            f"{warm_up} raise skip.max_grad_norm if these norms are normal for the model.",
        )
    return Explanation(
        f"{norm}, above its limit of {seen.limits.grad_norm:.4g}{follows}.",
        f"{warm_up} raise spike.sigma if these norms are normal for the model.",
    )


def _loss(decision: Decision, seen: Signals, config: GuardConfig) -> str:
    value = "NaN" if math.isnan(seen.loss) else "Inf"
    scaled = " before it was scaled" if Precision(config.precision).needs_loss_scale else ""
    return f"The loss was {value}{scaled}{_in_fp32(decision)}"


def _in_fp32(decision: Decision) -> str:
    return ", in FP32 as well" if decision.failed_in_fp32 else ""


def _unavoidable(decision: Decision, config: GuardConfig) -> str:
    """Return a sentence if FP32 is known to have the fault as well."""
    if decision.failed_in_fp32:
        return (
            "The step was repeated in FP32 and failed again. No precision can prevent this, unless a second "
            "model or a cast in the code is still 16-bit, which the guard does not change."
        )
    if config.precision == "fp32":
        return "This step ran in FP32, so no other precision can prevent this."
    if config.precision == "bf16-mixed":
        return "BF16 has the range of FP32, so FP32 is unlikely to prevent this."
    return ""


def _try_fp32(config: GuardConfig) -> str:
    """Return how to find out whether FP32 has the fault as well."""
    if config.skip.on_nonfinite == "retry_fp32":
        return "It is unknown whether the step is finite in FP32, because it could not be repeated."
    if config.precision == "fp16-weights":
        return "It is unknown whether the step is finite in FP32; halfguard replay tests this."
    return (
        "It is unknown whether the step is finite in FP32. To find out, set skip.on_nonfinite='retry_fp32', "
        "which repeats such steps in FP32 (with guard.step)."
    )
