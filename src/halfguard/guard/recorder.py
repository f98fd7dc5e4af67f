"""The recorder of a run: counts, journal rows and incidents of the steps that the policy has decided."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfguard.dist.collectives import rank, world_size
from halfguard.guard.config import GuardConfig
from halfguard.guard.evidence import explain
from halfguard.guard.metrics_log import LastStep, MetricsLog
from halfguard.guard.policy import Decision, Signals, StepLimits
from halfguard.guard.step_batches import StepBatches
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.journal import Journal, StepCounter, collect_environment, make_run_info
from halfguard.records import Action, HealthRow, HealthWarning, NoteRow, StepRow, Summary, WatchRow
from halfguard.step.holders import Saved
from halfguard.step.random_state import portable_random_state

# Warnings about a run that goes on, but not well. Pure: it is fed with decided steps, and reads no
# device.
#
# Each warning is given once. The limits are far from what healthy runs do: the search for the first
# loss scale (65536 down to 1024, say, or 2**50 down to 2**20) and single skipped steps give none.

ZERO_STEPS = 10  # applied steps in a row with a gradient norm of exactly 0
LOW_SCALE = 2.0**-10  # of the largest loss scale of an applied step, or of ...
FIRST_SCALE = 2.0**16  # ... torch's first scale: what lies above it is searched through
SCHEDULE_STEPS = 10  # skipped steps after which the learning rate was changed, at least ...
SCHEDULE_SHARE = 0.05  # ... this share of all steps: the growth of the scale costs one in thousands
ATTEMPTS = 200  # the last steps, of which ...
LEAST_APPLIED = 0.9  # ... this share must be applied
REPEATS = 50  # the last steps, of which at most half may be repeated in FP32
_APPLIED = (Action.APPLY, Action.RETRY)


class RunHealth:
    """Watches gradient norm, loss scale and the share of applied steps."""

    def __init__(self) -> None:
        self.told: list[HealthWarning] = []
        self._zeros = 0
        self._peak = 0.0  # the largest loss scale so far that was in use
        self._steps = 0
        self._moved = 0  # skipped steps after which the learning rate was changed
        self._recent: deque[bool] = deque(maxlen=ATTEMPTS)  # since the first applied step
        self._applied = 0  # of the recent ones
        self._repeated: deque[bool] = deque(maxlen=REPEATS)

    def add(self, action: Action, grad_norm: float, scale: float) -> dict[HealthWarning, str]:
        """Add a step that was decided; return new warnings with their texts, mostly none."""
        applied = action in _APPLIED
        self._steps += 1
        if applied:
            self._zeros = self._zeros + 1 if grad_norm == 0 else 0
        self._peak = max(self._peak, scale if applied else min(scale, FIRST_SCALE))
        if applied or self._recent:  # before the first applied step the scale is searched for
            if len(self._recent) == ATTEMPTS:
                self._applied -= self._recent[0]
            self._recent.append(applied)
            self._applied += applied
        is_repeat = action is Action.RETRY
        self._repeated.append(is_repeat)
        few = self._applies_too_few or (is_repeat and self._repeats_too_many)
        return self._new(scale) if few or self._zeros >= ZERO_STEPS or self.is_low(scale) else {}

    def is_low(self, scale: float) -> bool:
        """Return whether the loss scale has fallen further than that of a healthy run."""
        return scale <= self._peak * LOW_SCALE

    def add_moved_schedule(self) -> dict[HealthWarning, str]:
        """Add a change of the learning rate after a skipped step; return a new warning, mostly none."""
        self._moved += 1
        few = self._moved < max(SCHEDULE_STEPS, SCHEDULE_SHARE * self._steps)
        if few or HealthWarning.SCHEDULE_AHEAD in self.told:
            return {}
        self.told.append(HealthWarning.SCHEDULE_AHEAD)
        text = (
            f"The learning rate changed after {self._moved} skipped steps, so the schedule runs ahead of "
            "the updates. Step the scheduler only after an applied step (guard.last.applied), and start "
            "with a lower loss scale."
        )
        return {HealthWarning.SCHEDULE_AHEAD: text}

    @property
    def _applies_too_few(self) -> bool:
        full = len(self._recent) == ATTEMPTS
        return full and self._applied < LEAST_APPLIED * ATTEMPTS

    @property
    def _repeats_too_many(self) -> bool:
        return 2 * sum(self._repeated) > REPEATS

    def _new(self, scale: float) -> dict[HealthWarning, str]:
        found = {}
        if self._zeros >= ZERO_STEPS:
            found[HealthWarning.ZERO_GRADIENTS] = (
                f"The gradient norm was exactly 0 in {ZERO_STEPS} applied steps in a row, so "
                "nothing was learned. Either the loss does not depend on the trained weights (it "
                "is detached or saturated), or all gradients underflow."
            )
        if self.is_low(scale):
            found[HealthWarning.LOW_SCALE] = (
                f"The loss scale fell from {self._peak:g} to {scale:g}. A healthy run does not need such a "
                "low scale, at which small gradients underflow. To see where gradients overflow, use "
                "halfguard probe, or halfguard replay on an incident."
            )
        if self._applies_too_few:
            found[HealthWarning.FEW_APPLIED] = (
                f"Only {self._applied} of the last {ATTEMPTS} steps were applied. The summary "
                "lists the causes."
            )
        if self._repeats_too_many:
            found[HealthWarning.MANY_REPEATED] = (
                f"{sum(self._repeated)} of the last {REPEATS} steps overflowed and were repeated "
                "in FP32, which takes the time of both a 16-bit step and an FP32 step. To keep "
                "the overflowing module in FP32, set heal: {}. To find that module, use "
                "halfguard replay on an incident."
            )
        new = {warning: text for warning, text in found.items() if warning not in self.told}
        self.told += new
        return new


if TYPE_CHECKING:  # it reads and writes tensors: imported for the first run that keeps incidents
    from halfguard.incident import IncidentWriter

logger = logging.getLogger("halfguard")

MAX_INCIDENT_BYTES = 4 * 2**30


@dataclass(frozen=True)
class StepReport:
    """Everything that is needed to decide a step later, when its row has reached the host."""

    step: int
    epoch: int
    batch: int
    limits: StepLimits
    turn: frozenset[int]  # ids of the optimizers that were stepped
    batches: StepBatches
    outcome: StepOutcome
    state: Saved = ()  # as it was before the step
    holds_scale: bool = False  # the loss scale waits for the result of the retry

    @property
    def repeatable(self) -> bool:
        """True if a step that overflowed can be repeated, on all ranks: they do it together."""
        found = self.outcome.fault_report
        return self.batches.repeatable and (found is None or found.repeatable)

    def row(
        self,
        decision: Decision,
        seen: Signals,
        config: GuardConfig,
        note: str = "",
        *,
        contents: bool,
    ) -> StepRow:
        """Return the step in full; with ``contents``, strings and numbers of its batches as well."""
        found = self.outcome.fault_report
        known = found is not None and not decision.routine
        evidence = explain(decision, seen, found, config).evidence if known else ""
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
            batches=self.batches.descriptions(contents=contents, about=not config.privacy),
            ranks=self.outcome.ranks,
            evidence=evidence,
            routine=decision.routine,
            note=note,
        )


class Recorder:
    """Counts every step, writes the unusual ones to the journal, and captures incidents.

    All ranks count alike. Rank 0 writes the journal; an incident is written by the rank on which it arose.
    """

    def __init__(
        self,
        config: GuardConfig,
        device: torch.device,
        run_dir: Path | None,
        entry: str,
        metrics_log: MetricsLog | None = None,
    ) -> None:
        self.tally = StepCounter()
        # Other threads read these two. They are never loaded or divided into epochs: counts only grow.
        self.process_tally = StepCounter()
        self.last_step: LastStep | None = None
        self._metrics_log = metrics_log if rank() == 0 else None
        self.health = RunHealth()
        self.journal = Journal(run_dir if rank() == 0 else None)
        self.config = config
        self._device = device
        self.incidents = None if run_dir is None else self._make_incidents(run_dir, entry)
        entry = entry if self.incidents is not None else ""
        self.journal.write_run_info(make_run_info(config.model_dump(mode="json"), device, entry))

    def _make_incidents(self, run_dir: Path, entry: str) -> IncidentWriter | None:
        if self.config.incidents is None:
            return None
        from halfguard.incident import IncidentWriter  # noqa: PLC0415

        return IncidentWriter(
            run_dir / "incidents",
            keep=self.config.incidents.keep,
            max_bytes=MAX_INCIDENT_BYTES,
            weights=self.config.incidents.weights,
            environment=collect_environment(self._device),
            rank=rank(),
            world_size=world_size(),
            entry=entry,
        )

    def note(
        self, decision: Decision, seen: Signals, report: StepReport, note: str = ""
    ) -> StepRow | None:
        """Count a step; write and return the row of an unusual one."""
        for tally in (self.tally, self.process_tally):
            tally.add(decision.action, decision.cause, seen.grad_norm, seen.scale)
        self.last_step = LastStep(report.step, seen.loss, seen.grad_norm, seen.scale)
        for warning, text in self.health.add(decision.action, seen.grad_norm, seen.scale).items():
            self._warn(warning, text, report.step, report.epoch)
        if decision.cause is None:
            self.journal.add_healthy_step(report.step, seen.loss, seen.grad_norm, seen.scale)
            self._log_metrics(decision, seen, report)
            return None
        if decision.routine and self.health.is_low(seen.scale):
            decision = replace(decision, routine=False)  # no healthy run has such a scale
        # What a batch holds is written to the run's folder, and only if the batch itself may be kept there.
        contents = self.incidents is not None and not self.config.privacy
        row = report.row(decision, seen, self.config, note, contents=contents)
        self.journal.add_unusual_step(row)
        # A retried step was repaired at once, and scale calibration is part of every healthy run: no warning.
        routine = row.action is Action.RETRY or row.routine
        level = logging.INFO if routine or rank() else logging.WARNING
        in_log = row.model_copy(update={"batches": report.batches.descriptions()})
        worst = ", ".join(in_log.worst)
        logger.log(
            level, "step %d: %s, %s %s (%s)", row.step, row.action, row.code, row.cause, worst
        )
        if decision.note and not rank():
            logger.warning("step %d: %s", row.step, decision.note)
        self._log_metrics(decision, seen, report)
        return row

    def add_watched_step(self, row: WatchRow) -> None:
        """Write and log what a sampled step of this rank showed."""
        self.journal.add_row(row)
        if self._metrics_log is not None:
            self._metrics_log.add_watched_step(row)

    def add_note(self, step: int, epoch: int, text: str) -> None:
        """Write a sentence of the training script to journal and log."""
        text = str(text).encode("utf-8", "replace").decode()  # a file name may hold lone surrogates
        self.journal.add_row(NoteRow(step=step, epoch=epoch, text=text))
        if not rank():
            logger.info("step %d: %s", step, text)

    def _log_metrics(self, decision: Decision, seen: Signals, report: StepReport) -> None:
        if self._metrics_log is not None:
            self._metrics_log.add(decision, seen, report.step, self.tally)

    def add_moved_schedule(self, step: int, epoch: int) -> None:
        """Count a change of the learning rate after a skipped step."""
        for warning, text in self.health.add_moved_schedule().items():
            self._warn(warning, text, step, epoch)

    def _warn(self, warning: HealthWarning, text: str, step: int, epoch: int) -> None:
        self.tally.add_warning(warning)
        row = HealthRow(step=step, epoch=epoch, warning=warning, text=text)
        self.journal.add_row(row)
        if not rank():
            logger.warning("step %d: %s %s", step, warning.code, text)

    def capture(
        self,
        model: nn.Module,
        config: GuardConfig,
        decision: Decision,
        seen: Signals,
        report: StepReport,
        *,
        exact: bool,
    ) -> None:
        """Capture an incident, before a retry or a rollback changes the weights."""
        if self.incidents is None or decision.cause is None:
            return
        # Every healthy run begins with scale calibration; only the first step at too low a scale is kept.
        known = HealthWarning.LOW_SCALE in self.health.told
        if decision.routine and (known or not self.health.is_low(seen.scale)):
            return
        if rank() not in (report.outcome.ranks or (0,)):
            return
        # Only this rank's own loss can be repeated elsewhere.
        mine = seen if world_size() == 1 else replace(seen, loss=report.batches.local_loss)
        from halfguard.incident.capture import BadStep  # noqa: PLC0415

        # Gradients were averaged over all ranks: a single one cannot repeat them.
        gradients = report.outcome.gradients if world_size() == 1 else None
        norms = (
            [] if gradients is None else zip(gradients.names, gradients.norms.tolist(), strict=True)
        )
        bad_step = BadStep(
            step=report.row(decision, mine, config, contents=not config.privacy),
            micro_batches=[
                (m.batch, portable_random_state(m.rng), m.about)
                for m in report.batches.micro_batches
            ],
            config=config.model_dump(mode="json"),
            precision=config.precision,
            device=self._device.type,
            grad_norms=dict(norms),
            exact=exact,
            recent=[row.to_json() for row in self.journal.recent_rows(20)],
            private=config.privacy,
        )
        self.incidents.capture(model, bad_step)

    def end_epoch(self, epoch: int, scale: float) -> Summary:
        """Write the counts of the epoch to log and journal, and reset them; ``scale`` is the present one."""
        self.tally.set_scale(scale)
        summary = self.tally.summary(epoch)
        logger.info("%s", summary)
        self.journal.add_summary(summary)
        self.tally.next_epoch()
        return summary

    def close(self, scale: float) -> Summary:
        """Write and return the counts of the whole run; ``scale`` is the present one."""
        self.tally.set_scale(scale)
        summary = self.tally.summary()
        self.journal.add_summary(summary)
        self.journal.close()
        return summary

    def state_dict(self) -> dict[str, Any]:
        """Return the counts. Rows already written stay in the journal."""
        self.journal.flush()
        return self.tally.state_dict()
