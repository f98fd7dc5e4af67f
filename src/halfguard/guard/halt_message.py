"""The error that ends a run: what happened, where, why, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.errors import TrainingHaltedError
from halfguard.records import StepRow


def halt_error(row: StepRow, *, streak: int = 1) -> TrainingHaltedError:
    """Return the error that ends a run at this step."""
    assert row.cause is not None  # noqa: S101 - only a step with a cause is halted
    parameters = ", ".join(row.culprits) or "none is larger than the others"
    ranks = ", ".join(map(str, row.ranks))
    in_a_row = f" ({streak} bad steps in a row)" if streak > 1 else ""
    lines = [
        f"Training was stopped at epoch {row.epoch}, batch {row.batch}, step {row.step}{in_a_row}:",
        f"{row.cause}: {row.cause.description}.",
        f"loss {row.loss:.4g}, gradient norm {row.grad_norm:.4g}, loss scale {row.scale:g}",
        f"parameters: {parameters}",
        *([f"ranks: {ranks}"] if ranks else []),
        *(f"batch: {text}" for text in row.batches),
        *([row.note] if row.note else []),
    ]
    return TrainingHaltedError("\n".join(lines), cure=row.cause.advice)


def describe_recovery(rollbacks: int, remedies: Sequence[str]) -> str:
    """Return a sentence about what recovery tried before it gave up."""
    times = "1 time" if rollbacks == 1 else f"{rollbacks} times"
    ladder = f", then tried {', '.join(remedies)}" if remedies else ""
    return (
        f"Recovery rolled back {times}{ladder}; none of it held. What is left is the operation that "
        "overflows itself."
    )
