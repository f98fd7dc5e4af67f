"""The table of faults and training loops."""

from __future__ import annotations

from benchmarks.casebook.loops import frameworks, plain
from benchmarks.casebook.loops.faults import FAULTS
from benchmarks.casebook.loops.injection import FaultOutcome, MakeLoop, inject_faults
from benchmarks.casebook.tables import markdown

LOOPS: dict[str, MakeLoop] = {
    "hg.Guard": plain.Guarded,
    "GradScaler": plain.Scaled,
    "isnan: continue": plain.Pasted,
    "skip-step optimizer": plain.SkippingOptimizer,
    "Lightning": frameworks.Lightning,
    "transformers": frameworks.Transformers,
    "Accelerate": frameworks.Accelerate,
}
LETTERS = (
    ("L", "batches lost"),
    ("R", "later healthy steps rejected"),
    ("G", "gradients of the failed step are added to the next step"),
    ("W", "weights are non-finite"),
    ("M", "the optimizer's moments are non-finite"),
    ("B", "BatchNorm's statistics are non-finite"),
    ("S", "the scheduler advanced without an update"),
    ("F", "the loss scale fell although it was not the cause"),
    ("E", "the loop ends with its own error"),
)


def letters(outcome: FaultOutcome) -> str:
    """Return the harm in letters, with counts above 1; a dash for none."""
    marks = (
        outcome.batches_lost, outcome.refused_later, outcome.gradients_left, outcome.weights_poisoned,
        outcome.moments_poisoned, outcome.buffers_poisoned, max(0, outcome.scheduler_ahead),
        outcome.scale_wrong, bool(outcome.error),
    )  # fmt: skip
    named = [
        letter + (str(int(mark)) if mark > 1 else "")
        for (letter, _), mark in zip(LETTERS, marks, strict=True)
        if mark
    ]
    return " ".join(named) or "-"


def fault_table(loops: dict[str, MakeLoop] | None = None) -> str:
    """Put every fault into every loop, and return the table."""
    found = {name: inject_faults(make) for name, make in (loops or LOOPS).items()}
    lines = [
        [fault.description, *(letters(outcomes[number]) for outcomes in found.values())]
        for number, fault in enumerate(FAULTS)
    ]
    legend = "; ".join(f"**{letter}** {text}" for letter, text in LETTERS)
    return f"{markdown(['fault', *found], lines)}\n\n{legend}. A number is a count; a dash means no damage."
