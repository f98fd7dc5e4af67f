"""What happened, kept: counts, journal rows and incidents of the steps that the guard has judged."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from halfguard.dist.collectives import rank, world_size
from halfguard.guard.config import GuardConfig
from halfguard.guard.policy import Decision, Limits, Signals, calibrating
from halfguard.guard.step_batches import Window
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.incident.capture import Incidents, Moment
from halfguard.journal import Journal, Tally, environment, run_info
from halfguard.records import Action, StepRow, Summary
from halfguard.step.random_state import portable_random_state

logger = logging.getLogger("halfguard")


@dataclass(frozen=True)
class Report:
    """What goes with a row to the host: all that is needed to judge the step later."""

    step: int
    epoch: int
    batch: int
    limits: Limits
    turn: frozenset[int]  # ids of the optimizers whose step it was
    window: Window
    outcome: StepOutcome

    def row(self, decision: Decision, seen: Signals, note: str = "") -> StepRow:
        """The step in full, for the journal."""
        return StepRow(
            step=self.step,
            epoch=self.epoch,
            batch=self.batch,
            action=decision.action,
            cause=decision.cause,
            loss=seen.loss,
            grad_norm=seen.grad_norm,
            scale=seen.scale,
            culprits=self.outcome.culprits,
            batches=self.window.descriptions(),
            ranks=self.outcome.ranks,
            note=note,
        )


class Chronicle:
    """Counts every step, writes down the unusual ones, and keeps what is needed to repeat them.

    All ranks count alike. The first one writes the journal, and incidents are kept where they arose.
    """

    def __init__(
        self,
        config: GuardConfig,
        device: torch.device,
        run_dir: str | os.PathLike[str] | None,
        entry: str,
    ) -> None:
        self.tally = Tally()
        self.journal = Journal(run_dir if rank() == 0 else None)
        self.journal.begin(run_info(config.model_dump(mode="json"), device))
        self.incidents: Incidents | None = None
        self._config = config
        self._device = device
        if run_dir is not None and config.incidents is not None:
            self.incidents = Incidents(
                Path(run_dir) / "incidents",
                keep=config.incidents.keep,
                max_bytes=config.incidents.max_bytes,
                weights=config.incidents.weights,
                environment=environment(device),
                rank=rank(),
                world_size=world_size(),
                entry=entry,
            )

    def note(
        self, decision: Decision, seen: Signals, report: Report, note: str = ""
    ) -> StepRow | None:
        """Count a step; an unusual one is written down and returned."""
        self.tally.add(decision.action, decision.cause, seen.grad_norm, seen.scale)
        if decision.cause is None:
            self.journal.healthy(report.step, seen.loss, seen.grad_norm, seen.scale)
            return None
        row = report.row(decision, seen, note)
        self.journal.unusual(row)
        # What was mended on the spot, or belongs to every healthy run, is nothing to warn of.
        routine = decision.action is Action.RETRY or calibrating(seen, self._config)
        level = logging.INFO if routine or rank() else logging.WARNING
        blamed = ", ".join(row.culprits)
        logger.log(level, "step %d: %s, %s (%s)", row.step, row.action, row.cause, blamed)
        return row

    def capture(
        self,
        model: nn.Module,
        config: GuardConfig,
        decision: Decision,
        seen: Signals,
        report: Report,
        *,
        exact: bool,
    ) -> None:
        """Keep an incident, before anything that repeats or undoes the step touches the weights."""
        # A scale that is finding its level is no incident; every healthy run begins with it.
        if self.incidents is None or decision.cause is None or calibrating(seen, config):
            return
        if rank() not in (report.outcome.ranks or (0,)):
            return
        alone = world_size() == 1
        gradients = report.outcome.gradients
        # What can be repeated elsewhere is this rank's own loss; gradients were averaged over all.
        mine = seen if alone else replace(seen, loss=report.window.own_loss)
        moment = Moment(
            step=report.row(decision, mine),
            micro_batches=[
                (m.batch, portable_random_state(m.rng), m.about)
                for m in report.window.micro_batches
            ],
            config=config.model_dump(mode="json"),
            precision=config.precision,
            device=self._device.type,
            grad_norms=dict(zip(gradients.names, gradients.norms.tolist(), strict=True))
            if alone
            else {},
            exact=exact,
            recent=[row.to_json() for row in self.journal.recent(20)],
        )
        self.incidents.capture(model, moment)

    def end_epoch(self, epoch: int) -> Summary:
        """One line for the log and the journal, and a fresh count."""
        summary = self.tally.summary(epoch)
        logger.info("%s", summary)
        self.journal.summary(summary)
        self.tally.next_epoch()
        return summary

    def close(self) -> Summary:
        """The counts of the whole run, written down."""
        summary = self.tally.summary()
        self.journal.summary(summary)
        self.journal.close()
        return summary

    def state_dict(self) -> dict[str, Any]:
        """The counts; what is written stays written."""
        self.journal.flush()
        return self.tally.state_dict()
