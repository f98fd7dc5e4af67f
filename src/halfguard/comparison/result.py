"""The result of a comparison as a record: the verdict, and every run with its seed and its value."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record
from halfguard.records.verdict import Verdict


class ComparedRun(FloatRecordPart):
    """One logged run, as it entered the comparison."""

    group: str = Field(description="the side of the comparison that it belongs to")
    place: str = Field(description="file or folder of its log")
    name: str
    tracker: str
    seed: int | None = None
    seed_source: str = Field(default="", description="where the seed was found")
    paired: bool = Field(default=False, description="another side has a run with this seed")
    value: float | None = Field(default=None, description="None if the metric was not logged")
    last_step: int | None = Field(default=None, description="of the metric")
    values: int = Field(default=0, description="how often the metric was logged")
    nonfinite: int = Field(default=0, description="how many of them are NaN or infinite")
    problem: str | None = Field(default=None, description="why it failed or is not finished")


class LoggedComparison(Record):
    """The verdict on logged runs."""

    kind: ClassVar[str] = "comparison"

    at: str = Field(description="which value of each run was compared: last, best or tail")
    verdict: Verdict
    runs: tuple[ComparedRun, ...]
