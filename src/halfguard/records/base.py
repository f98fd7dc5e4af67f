"""Base class of every record on disk: frozen, versioned, and without unknown fields.

A record's JSON begins with its ``kind`` and ``schema_version``. Another version raises an error rather
than being misread.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from halfguard.errors import RecordError


class Record(BaseModel):
    """Frozen data with a kind and a version; subclasses add fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    kind: ClassVar[str]
    schema_version: ClassVar[int] = 1

    def to_json(self) -> str:
        """Return one line of JSON that ``from_json`` of this version can read."""
        head = f'{{"kind": "{self.kind}", "schema_version": {self.schema_version}'
        body = self.model_dump_json()
        return head + "}" if body == "{}" else f"{head}, {body[1:]}"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a record of this version."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordError(
                f"This is not a {cls.kind} record: it is not JSON ({error})."
            ) from error
        if not isinstance(body, dict) or body.pop("kind", None) != cls.kind:
            raise RecordError(f"This is not a {cls.kind} record: its 'kind' is missing or wrong.")
        return cls._validate(cls._without_version(body))

    @classmethod
    def _without_version(cls, body: dict[str, Any]) -> dict[str, Any]:
        version = body.pop("schema_version", None)
        if type(version) is not int or version < 1:
            raise RecordError(f"This {cls.kind} record has no valid 'schema_version'.")
        if version != cls.schema_version:
            raise RecordError(
                f"This {cls.kind} record has version {version}; this halfguard reads version "
                f"{cls.schema_version}.",
                cure="Run: pip install --upgrade halfguard",
            )
        return body

    @classmethod
    def _validate(cls, body: dict[str, Any]) -> Self:
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the record itself"
            raise RecordError(
                f"This {cls.kind} record is damaged at {place}: {first['msg']}."
            ) from error


class RecordPart(BaseModel):
    """Frozen data inside a record, without a kind and version of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FloatRecordPart(RecordPart):
    """A part whose floats may be NaN or infinite; like a record's own, they are written as strings."""

    model_config = ConfigDict(ser_json_inf_nan="strings")
