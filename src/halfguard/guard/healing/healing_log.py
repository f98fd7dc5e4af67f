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
        with_it = "With this island" if not others else f"With this island and {others} more"
        text = (
            f"{describe_change(island)} from the next step on. {failure} {with_it} the same step is finite, "
            f"and its gradients are within {proof.error:.2%} of those in FP32. {found.cost.flops:.1%} of "
            "the step's matrix-product FLOPs move to FP32"
        )
        if proof.sensitivity:
            text += (
                " (this step is sensitive: rounding only its weights to 16-bit changes the gradients by "
                f"{proof.sensitivity:.2%})"
            )
        text += f". Plan: {self._plan}."
        self._add(step, "applied", text, producer, name_of(island))

    def taken_back(self, step: int, producer: Producer, island: str) -> None:
        """Say that an island did not hold."""
        text = f"{producer} failed again although {island} runs in FP32. This island is removed."
        self._add(step, "taken back", text, producer, island)

    def not_found(
        self, step: int, producer: Producer, *, finite_in_fp32: bool, error: str = "", found: Found
    ) -> None:
        """Say that no island helps; once for each producer."""
        if found.needed is not None:
            why = (
                f"only {name_of(found.needed)} in FP32 fixes the step, but it has {found.cost.flops:.0%} of "
                "the step's matrix-product FLOPs, so it stays in 16-bit precision. To run it in FP32 "
                "anyway, add it to the plan as an island"
            )
        elif finite_in_fp32:
            why = "none of the islands tried makes the step finite and its gradients close to those in FP32"
        elif error:
            why = f"the step cannot be run in FP32 for comparison ({error})"
        else:
            why = "the step is not finite in FP32 either, so no island helps"
        text = f"{producer} failed: {why}. Such steps are still skipped or retried."
        self._add(step, "not found", text, producer)

    def stopped(self, step: int, why: str) -> None:
        """Say that no more islands are made."""
        text = f"heal stops adding islands: {why}. Failed steps are still skipped or retried."
        self._add(step, "stopped", text)

    def older_state(self, step: int, islands: Sequence[str]) -> None:
        """Say which islands are not in force, because the state that was loaded is older than they are."""
        if rank():
            return
        if self._plan.path is None:
            how = (
                "To start with these islands next time, give the guard a run_dir. It saves a plan file "
                "there; set plan in the config to its path."
            )
        else:
            how = f"To start with these islands, copy {self._plan} and set plan in the config to the copy."
        logger.warning(
            "step %d: these FP32 islands are removed because the loaded state was saved before "
            "the guard added them: %s. If an operation fails again, the guard adds its island "
            "again. %s",
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
        return f"An audit found a swallowed {producer.swallowed} in {producer}."
    steps = "1 step" if count == 1 else f"{count} steps"
    return f"{producer} returned NaN or Inf in 16-bit precision in {steps}."
