"""What a replayed incident says: did it happen again, where it began, and which change was seen to cure it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import Record
from halfguard.records.culprit import Culprit
from halfguard.records.step import Cause, StepRow

Reproduced = Literal["bitwise", "same fault", "no"]
CureKind = Literal["data", "operation", "island", "scale", "precision"]


class Trial(Record):
    """One change, really run: was the step finite with it?"""

    kind: ClassVar[str] = "trial"

    name: str = Field(description="what was changed, in a few words")
    finite: bool
    loss: float = float("nan")
    note: str = ""


class Cure(Record):
    """The change to make, with the trial that showed it to work."""

    kind: ClassVar[str] = "cure"

    what: CureKind
    sentence: str
    trial: str = Field(description="name of the trial that was finite")
    patch: str = Field(default="", description="lines for a config, a plan or the source")


class Autopsy(Record):
    """The cause of death, as far as it was seen; nothing in it is guessed."""

    kind: ClassVar[str] = "autopsy"

    incident: str
    step: StepRow
    cause: Cause | None
    reproduced: Reproduced
    how: str = Field(description="what the step was run with, and what differs from the original")
    culprit: Culprit | None = None
    way: tuple[str, ...] = Field(default=(), description="modules that carried it on, in order")
    samples: tuple[int, ...] = Field(
        default=(), description="samples of the batch that bring it about"
    )
    micro_batch: int = 0
    trials: tuple[Trial, ...] = ()
    cure: Cure | None = None
    suspects: tuple[str, ...] = Field(
        default=(), description="where to look if it did not happen again"
    )
