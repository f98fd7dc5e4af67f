"""Sentences about healings, in plain words, for the log and the journal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from halfguard.dist.collectives import rank
from halfguard.guard.healing.plan_file import PlanFile
from halfguard.journal import Journal
from halfguard.records import HealingRow
from halfguard.records.plan import AnyIsland
from halfguard.trials.producer import Producer, describe_change, name_of
from halfguard.trials.search import Found

logger = logging.getLogger("halfguard")


class HealingLog:
    """Says what failed, where, and what was changed; rank 0 speaks."""

    def __init__(self, journal: Journal, plan: PlanFile) -> None:
        self._journal, self._plan = journal, plan

    def applied(
        self, step: int, producer: Producer, island: AnyIsland, failure: str, found: Found
    ) -> None:
        """Say that an island was proven, and is made before the next step."""
        proof = found.proof
        others = len(found.islands) - 1
        with_it = "With this island" if not others else f"With this and {others} more"
        text = (
            f"{describe_change(island)} from the next step on. {failure} {with_it} the same step is finite, "
            f"and its gradients are within {proof.error:.2%} of FP32's; {found.cost.flops:.1%} of the step's "
            "matrix-product FLOPs leave half"
        )
        if proof.sensitivity:
            text += f" (a sensitive step: weights rounded to half alone move them by {proof.sensitivity:.2%})"
        text += f". Plan: {self._plan}."
        self._add(step, "applied", text, producer, name_of(island))

    def taken_back(self, step: int, producer: Producer, island: str) -> None:
        """Say that an island did not hold."""
        text = (
            f"{producer} failed again, although {island} runs in FP32. That island is taken back."
        )
        self._add(step, "taken back", text, producer, island)

    def not_found(
        self,
        step: int,
        producer: Producer,
        *,
        finite_in_fp32: bool,
        error: str = "",
        found: Found,
    ) -> None:
        """Say that no island helps; once for each producer."""
        if found.needed is not None:
            why = (
                f"no part of the model that was tried is enough, and {name_of(found.needed)}, which is, has "
                f"{found.cost.flops:.0%} of the step's matrix-product FLOPs, so it stays in half. To run it "
                "in FP32 all the same, make it an island in the plan"
            )
        elif finite_in_fp32:
            why = "no island that was tried makes the step finite and like FP32's"
        elif error:
            why = f"the step cannot be run in FP32 to compare with ({error})"
        else:
            why = "the step is not finite in FP32 either, so no island helps"
        text = f"{producer} failed: {why}. Such steps are still refused or retried."
        self._add(step, "not found", text, producer)

    def stopped(self, step: int, why: str) -> None:
        """Say that no more islands are made."""
        text = f"Healing ends: {why}. Bad steps are still refused or retried."
        self._add(step, "stopped", text)

    def older_state(self, step: int, islands: Sequence[str]) -> None:
        """Say which islands are not in force, because the state that was loaded is older than they are."""
        if rank():
            return
        if self._plan.path is None:
            how = "To start with them next time, give the guard a run_dir: it writes a file there for plan:"
        else:
            how = f"To start with them instead, copy {self._plan} and set plan: to the copy"
        logger.warning(
            "step %d: %s: in half again. The state that was loaded was saved before the guard made these "
            "FP32 islands, and the run continues as it did from there: an operation that fails again gets "
            "its island again. %s in the config.",
            step,
            ", ".join(islands),
            how,
        )

    def _add(
        self,
        step: int,
        action: Literal["applied", "taken back", "not found", "stopped"],
        text: str,
        producer: Producer | None = None,
        island: str = "",
    ) -> None:
        place = {}
        if producer is not None:
            place = {"module": producer.module, "file": producer.file, "line": producer.line}
        row = HealingRow(step=step, action=action, island=island, text=text, **place)  # type: ignore[arg-type]
        self._journal.add_row(row)
        if not rank():
            logger.warning("step %d: %s", step, text)


def describe_failure(producer: Producer, count: int) -> str:
    """Return one sentence on what failed, and how often."""
    if producer.swallowed:
        return f"{producer}: a swallowed {producer.swallowed}, found by an audit."
    steps = "1 step" if count == 1 else f"{count} steps"
    return f"{producer} made numbers in half that are not finite, in {steps}."
