"""The error that ends a run: what happened, where, why, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.errors import TrainingHaltedError
from halfguard.records import Cause, StepRow

_WHAT = {
    Cause.FORWARD_OVERFLOW: "the loss was not finite before it was scaled",
    Cause.GRADIENT_OVERFLOW: "the loss was finite, the gradients were not",
    Cause.BAD_BATCH: "the batch itself was bad: inputs not finite, or every label ignored",
    Cause.GRADIENT_SPIKE: "the gradient norm was above its limit",
    Cause.LOSS_SPIKE: "the loss was above its limit",
    Cause.DESYNC: "ranks that must hold the same bits do not",
}

_NEXT = {
    Cause.FORWARD_OVERFLOW: "A smaller loss scale does not help. Keep the overflowing module in FP32, or "
    "set skip.on_nonfinite to 'retry_fp32'; if FP32 is not finite either, look for log(0), 0/0 or a "
    "learning rate that is too high.",
    Cause.GRADIENT_OVERFLOW: "The scale is at its floor, so the gradients themselves leave the range of "
    "half: keep the layers of these parameters in FP32, or lower the learning rate.",
    Cause.BAD_BATCH: "Look at these samples in the data; remove or repair them there.",
    Cause.GRADIENT_SPIKE: "Lower the learning rate, warm it up for longer, or raise the limit if these "
    "norms are normal for the model.",
    Cause.LOSS_SPIKE: "Look at these samples; lower the learning rate, or raise spike.sigma if such "
    "losses are normal for the data.",
    Cause.DESYNC: "Return to an earlier checkpoint. One rank, once: suspect its memory. The same ranks "
    "again, or many: something is written or drawn on some ranks only; set desync.every to 1 to find the "
    "step. desync.action='resync' goes on with the majority's bits.",
}


def halt_error(row: StepRow, *, streak: int = 1) -> TrainingHaltedError:
    """Return the error that ends a run at this step."""
    assert row.cause is not None  # noqa: S101 - only a step with a cause is halted
    parameters = ", ".join(row.culprits) or "none is larger than the others"
    ranks = ", ".join(map(str, row.ranks))
    in_a_row = f" ({streak} bad steps in a row)" if streak > 1 else ""
    lines = [
        f"Training was stopped at epoch {row.epoch}, batch {row.batch}, step {row.step}{in_a_row}:",
        f"{row.cause}: {_WHAT[row.cause]}.",
        f"loss {row.loss:.4g}, gradient norm {row.grad_norm:.4g}, loss scale {row.scale:g}",
        f"parameters: {parameters}",
        *([f"ranks: {ranks}"] if ranks else []),
        *(f"batch: {text}" for text in row.batches),
        *([row.note] if row.note else []),
    ]
    return TrainingHaltedError("\n".join(lines), cure=_NEXT[row.cause])


def describe_recovery(rollbacks: int, remedies: Sequence[str]) -> str:
    """Return a sentence about what recovery tried before it gave up."""
    times = "1 time" if rollbacks == 1 else f"{rollbacks} times"
    ladder = f", then tried {', '.join(remedies)}" if remedies else ""
    return (
        f"Recovery rolled back {times}{ladder}; the run still failed. Change the operation "
        "that overflows."
    )
