"""The records in a run's ``steps.jsonl``, distinguished by the ``kind`` at the start of each line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from halfguard.errors import RecordError
from halfguard.records.step import (
    HealingRow,
    HealthRow,
    HealthyStepsRow,
    NoteRow,
    StepRow,
    Summary,
)
from halfguard.records.watch import WatchRow

JournalRow = StepRow | HealthyStepsRow | HealthRow | WatchRow | HealingRow | NoteRow | Summary

_ROW_TYPES: Mapping[str, type[JournalRow]] = MappingProxyType(
    {
        row.kind: row
        for row in (StepRow, HealthyStepsRow, HealthRow, WatchRow, HealingRow, NoteRow, Summary)
    }
)


def parse_journal_row(text: str | bytes) -> JournalRow | str:
    """Read one row, or return the name of its kind if this version does not know that kind.

    An unknown kind was added by a later halfguard, and the known rows are correct without it. A later
    *version* of a known kind raises an error, since its numbers may have another meaning.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"This is not a journal row: it is not JSON ({error}).") from error
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or type(body.get("schema_version")) is not int:
        raise RecordError("This is not a journal row: its 'kind' or 'schema_version' is missing.")
    return _ROW_TYPES[kind].from_json(text) if kind in _ROW_TYPES else kind
