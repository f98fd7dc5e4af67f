"""The rows of a run in the order of its steps, as they stand: after a resumed run the last word holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from halfguard.records.rows import Row
from halfguard.records.step import Action, Cause, StepRow, Summary, WindowRow

_APPLIED = (Action.APPLY, Action.RETRY)


@dataclass
class Timeline:
    """Windows and unusual steps without overlap, the counts of epochs, and how often a run was resumed."""

    parts: list[StepRow | WindowRow] = field(default_factory=list)
    epochs: dict[int, Summary] = field(default_factory=dict)
    resumed: int = 0
    closed: bool = False  # the run has written its last counts

    @property
    def unusual(self) -> list[StepRow]:
        """Every step that was not an ordinary one."""
        return [part for part in self.parts if isinstance(part, StepRow)]

    def summary(self) -> Summary:
        """The counts of the whole run, from the rows that stand."""
        counts: dict[str, int] = {"steps": 0, "applied": 0, "retried": 0, "rollbacks": 0, "fell": 0}
        skipped: dict[Cause, int] = {}
        scale: float | None = None
        norms: list[float] = []
        for part in self.parts:
            number = _last(part) - _first(part) + 1
            counts["steps"] += number
            counts["fell"] += scale is not None and part.scale < scale
            scale = part.scale
            if isinstance(part, WindowRow):
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
        sane = [norm for norm in norms if norm == norm]  # noqa: PLR0124 - NaN widens no range
        return Summary(
            steps=counts["steps"],
            applied=counts["applied"],
            retried=counts["retried"],
            rollbacks=counts["rollbacks"],
            skipped=skipped,
            scale=1.0 if scale is None else scale,
            scale_reductions=counts["fell"],
            grad_norm_min=min(sane, default=float("inf")),
            grad_norm_max=max(sane, default=0.0),
        )


def timeline(rows: Iterable[Row]) -> Timeline:
    """Rows as they were written, a step possibly more than once, put in order."""
    found, written = Timeline(), -1
    for row in rows:
        found.closed = isinstance(row, Summary) and row.epoch is None
        if isinstance(row, Summary):
            if row.epoch is not None:
                found.epochs[row.epoch] = row
            continue
        found.resumed += _first(row) <= written
        written = _last(row)
        _place(row, found.parts)
    return found


def _first(row: StepRow | WindowRow) -> int:
    return row.step if isinstance(row, StepRow) else row.first_step


def _last(row: StepRow | WindowRow) -> int:
    return row.step if isinstance(row, StepRow) else row.last_step


def _place(row: StepRow | WindowRow, parts: list[StepRow | WindowRow]) -> None:
    if not parts or _first(row) > _last(parts[-1]):
        parts.append(row)
        return
    start = bisect_left(parts, _first(row), key=_last)
    end = start
    while end < len(parts) and _first(parts[end]) <= _last(row):
        end += 1
    kept: list[StepRow | WindowRow] = []
    for part in parts[start:end]:  # a window that is only half covered keeps its other half
        if isinstance(part, WindowRow) and part.first_step < _first(row):
            kept.append(part.model_copy(update={"last_step": _first(row) - 1}))
        if isinstance(part, WindowRow) and part.last_step > _last(row):
            kept.append(part.model_copy(update={"first_step": _last(row) + 1}))
    parts[start:end] = sorted([*kept, row], key=_first)
