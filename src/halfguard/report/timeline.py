"""The data of a run report: its rows by step. If a resumed run wrote a step twice, the last row counts."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from halfguard.records.base import Record
from halfguard.records.journal_rows import JournalRow
from halfguard.records.step import (
    Action,
    Cause,
    HealingRow,
    HealthRow,
    HealthWarning,
    HealthyStepsRow,
    LossCurve,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
)
from halfguard.records.watch import WatchRow

_APPLIED = (Action.APPLY, Action.RETRY)


@dataclass
class Timeline:
    """Groups of healthy steps and single unusual steps, without overlap; summaries of epochs."""

    parts: list[StepRow | HealthyStepsRow] = field(default_factory=list)
    epochs: dict[int, Summary] = field(default_factory=dict)
    warnings: dict[HealthWarning, HealthRow] = field(default_factory=dict)  # the last of each
    watched: dict[int, WatchRow] = field(default_factory=dict)  # sampled steps
    healings: list[HealingRow] = field(default_factory=list)
    notes: list[NoteRow] = field(default_factory=list)  # of the training script
    resumed: int = 0  # how often
    closed: bool = False  # the run has written its final summary

    @property
    def unusual(self) -> list[StepRow]:
        """All unusual steps."""
        return [part for part in self.parts if isinstance(part, StepRow)]

    def summary(self) -> Summary:
        """Return the counts of the whole run."""
        counts: dict[str, int] = {"steps": 0, "applied": 0, "retried": 0, "rollbacks": 0, "fell": 0}
        skipped: dict[Cause, int] = {}
        scale: float | None = None
        norms: list[float] = []
        for part in self.parts:
            number = part.last_step - part.first_step + 1
            counts["steps"] += number
            counts["fell"] += scale is not None and part.scale < scale
            scale = part.scale
            if isinstance(part, HealthyStepsRow):
                counts["applied"] += number
                norms += [part.grad_norm_min, part.grad_norm_max]
            elif part.action in _APPLIED:
                counts["applied"] += 1
                counts["retried"] += part.action is Action.RETRY
                norms.append(part.grad_norm)
            elif part.action is Action.ROLL_BACK:
                counts["rollbacks"] += 1
            elif part.cause is not None:
                skipped[part.cause] = skipped.get(part.cause, 0) + 1
        known = [norm for norm in norms if norm == norm]  # noqa: PLR0124 - NaN
        return Summary(
            steps=counts["steps"],
            applied=counts["applied"],
            retried=counts["retried"],
            rollbacks=counts["rollbacks"],
            skipped=skipped,
            scale=1.0 if scale is None else scale,
            scale_reductions=counts["fell"],
            grad_norm_min=min(known, default=float("inf")),
            grad_norm_max=max(known, default=0.0),
            warnings=tuple(self.warnings),
        )


def build_timeline(rows: Iterable[JournalRow]) -> Timeline:
    """Order rows by step; ``rows`` are in the order of writing and may hold a step more than once."""
    found, written, known = Timeline(), -1, 0  # known: healings before the last part
    for row in rows:
        found.closed = isinstance(row, Summary) and row.epoch is None
        match row:
            case Summary():
                if row.epoch is not None:
                    found.epochs[row.epoch] = row
            case HealthRow():
                found.warnings[row.warning] = row
            case WatchRow():
                found.watched[row.step] = row
            case HealingRow():
                found.healings.append(row)
            case NoteRow():
                found.notes.append(row)
            case _:
                if row.first_step <= written:
                    found.resumed += 1
                    found.healings = _without_undone(found.healings, known, row.first_step)
                written, known = row.last_step, len(found.healings)
                _insert(row, found.parts)
    # A run that was killed and resumed may have written them again, without the steps in between.
    found.healings = list(
        {(r.step, r.action, r.island, r.text): r for r in found.healings}.values()
    )
    found.notes = list({(r.step, r.epoch, r.text): r for r in found.notes}.values())
    return found


def _without_undone(rows: list[HealingRow], known: int, step: int) -> list[HealingRow]:
    """Return healings without those that a run resumed at ``step`` has undone, and may have repeated."""
    return [row for index, row in enumerate(rows) if index >= known or row.step < step]


def _insert(row: StepRow | HealthyStepsRow, parts: list[StepRow | HealthyStepsRow]) -> None:
    if not parts or row.first_step > parts[-1].last_step:
        parts.append(row)
        return
    start = bisect_left(parts, row.first_step, key=attrgetter("last_step"))
    end = start
    while end < len(parts) and parts[end].first_step <= row.last_step:
        end += 1
    kept: list[StepRow | HealthyStepsRow] = []
    for part in parts[start:end]:  # a group that the new row covers in part keeps the rest
        if isinstance(part, HealthyStepsRow) and part.first_step < row.first_step:
            kept.append(_cut(part, part.first_step, row.first_step - 1))
        if isinstance(part, HealthyStepsRow) and part.last_step > row.last_step:
            kept.append(_cut(part, row.last_step + 1, part.last_step))
    parts[start:end] = sorted([*kept, row], key=attrgetter("first_step"))


def _cut(part: HealthyStepsRow, first: int, last: int) -> HealthyStepsRow:
    """Return the steps from ``first`` to ``last`` of a group, with their part of the loss curve."""
    losses = part.losses and _cut_curve(
        part.losses, first - part.first_step, last - part.first_step
    )
    return part.model_copy(update={"first_step": first, "last_step": last, "losses": losses})


def _cut_curve(losses: LossCurve, first: int, last: int) -> LossCurve | None:
    size = losses.steps_per_point
    if first % size:
        return None  # the curve has no point that begins here
    kept = slice(first // size, last // size + 1)
    parts = {name: getattr(losses, name)[kept] for name in ("mean", "low", "high")}
    return losses.model_copy(update=parts)


@dataclass(frozen=True)
class RunReport:
    """A run as found on disk: ``incidents`` by step, ``problems`` for files that could not be read."""

    name: str
    info: RunInfo | None
    timeline: Timeline
    incidents: dict[int, list[str]]
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[JournalRow],
        info: RunInfo | None = None,
        incidents: Sequence[str] = (),
        problems: Sequence[str] = (),
    ) -> RunReport:
        """Build a report from rows in the order of writing and names of incident folders (000123-r0)."""
        by_step: dict[int, list[str]] = {}
        for folder in sorted(incidents):
            number = folder.partition("-r")[0]
            if number.isascii() and number.isdigit():
                by_step.setdefault(int(number), []).append(folder)
        return cls(name, info, build_timeline(rows), by_step, tuple(problems))

    def to_json(self) -> str:
        """Return one JSON object, with rows as in the journal."""
        timeline = self.timeline
        rows: dict[str, Iterable[Record]] = {
            "unusual": timeline.unusual,
            "epochs": timeline.epochs.values(),
            "warnings": timeline.warnings.values(),
            "watched": timeline.watched.values(),
            "healings": timeline.healings,
            "notes": timeline.notes,
        }
        body = {
            "kind": "run_report",
            "schema_version": 1,
            "run": self.name,
            "info": None if self.info is None else json.loads(self.info.to_json()),
            "closed": timeline.closed,
            "resumed": timeline.resumed,
            "summary": json.loads(timeline.summary().to_json()),
            **{name: [json.loads(row.to_json()) for row in part] for name, part in rows.items()},
            "incidents": [name for names in self.incidents.values() for name in names],
            "problems": list(self.problems),
        }
        return json.dumps(body)
