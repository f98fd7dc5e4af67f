"""Records survive the disk, and refuse what they are not."""

from __future__ import annotations

import json
import math
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.cases import each

from halfguard.errors import RecordError
from halfguard.records import Finding, Record


class Reading(Record):
    kind: ClassVar[str] = "reading"
    schema_version: ClassVar[int] = 3
    value: float
    unit: str


class Nothing(Record):
    kind: ClassVar[str] = "nothing"


@given(st.floats(), st.text())
def test_round_trip(value: float, unit: str) -> None:
    record = Reading(value=value, unit=unit)
    text = record.to_json()
    assert "\n" not in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = Reading.from_json(text)
    assert again.unit == unit
    assert again.value == value or (math.isnan(again.value) and math.isnan(value))


def test_a_record_without_fields() -> None:
    assert Nothing.from_json(Nothing().to_json()) == Nothing()


def test_kind_and_version_come_first() -> None:
    text = Reading(value=1, unit="m").to_json()
    assert list(json.loads(text))[:2] == ["kind", "schema_version"]


@each(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "'kind' is missing"),
        ('{"kind": "finding"}', "'kind' is missing or wrong"),
        ('{"kind": "reading"}', "no valid 'schema_version'"),
        ('{"kind": "reading", "schema_version": true}', "no valid 'schema_version'"),
        ('{"kind": "reading", "schema_version": 4}', "version 4; this halfguard reads version 3"),
        ('{"kind": "reading", "schema_version": 2}', "version 2; this halfguard reads version 3"),
        (
            '{"kind": "reading", "schema_version": 3, "unit": "m"}',
            "damaged at value: Field required",
        ),
        (
            '{"kind": "reading", "schema_version": 3, "value": 1, "unit": "m", "x": 1}',
            "damaged at x",
        ),
    ],
)
def test_what_is_not_a_record_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Reading.from_json(text)


def test_records_are_frozen() -> None:
    record = Reading(value=1, unit="m")
    with pytest.raises(ValidationError):
        record.value = 2


def test_a_finding_names_its_place() -> None:
    assert Finding(code="HG101", message="m", path="a.py", line=3, column=7).place == "a.py:3:7"
    assert Finding(code="HG101", message="m", path="a.py").place == "a.py"
    assert Finding(code="DR001", message="m", subject="encoder.wo").place == "encoder.wo"
