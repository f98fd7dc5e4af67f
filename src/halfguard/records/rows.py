"""The records that a run's ``steps.jsonl`` may hold, found by the ``kind`` each line begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from halfguard.errors import RecordError
from halfguard.records.step import StepRow, Summary, WindowRow

Row = StepRow | WindowRow | Summary

ROWS: Mapping[str, type[StepRow] | type[WindowRow] | type[Summary]] = MappingProxyType(
    {row.kind: row for row in (StepRow, WindowRow, Summary)}
)


def row_from_json(text: str | bytes) -> Row | str:
    """Read one row; or give back the name of its kind where this version does not know it.

    A kind that is not known is a row that a later halfguard added: what is known stays true without
    it. A later *version* of a known kind is refused, since its numbers may have changed meaning.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"This is not a row: it is not JSON ({error}).") from error
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or type(body.get("schema_version")) is not int:
        raise RecordError("This is not a row: its 'kind' or 'schema_version' is missing.")
    return ROWS[kind].from_json(text) if kind in ROWS else kind
