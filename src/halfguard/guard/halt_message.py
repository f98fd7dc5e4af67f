"""The error that ends a run: what happened, where, why, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.errors import TrainingHaltedError
from halfguard.guard.evidence import Explanation
from halfguard.records import StepRow


def halt_error(
    row: StepRow, explanation: Explanation, batches: Sequence[str], *, streak: int = 1
) -> TrainingHaltedError:
    """Return the error that ends a run at this step; ``batches`` describes them."""
    parameters = ", ".join(row.culprits) or "none is larger than the others"
    ranks = ", ".join(map(str, row.ranks))
    in_a_row = f" ({streak} bad steps in a row)" if streak > 1 else ""
    lines = [
        f"Training was stopped at epoch {row.epoch}, batch {row.batch}, step {row.step}{in_a_row}:",
        f"{row.cause}: {explanation.evidence}",
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
    return f"Recovery rolled back {times}{ladder}. The fault came back each time."
