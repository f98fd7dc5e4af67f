"""What a replayed incident says: did it happen again, where it began, which change was seen to cure it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import Record
from halfguard.records.culprit import Culprit
from halfguard.records.step import Cause, StepRow

Reproduced = Literal["bitwise", "same fault", "no"]
CureKind = Literal["data", "weights", "operation", "island", "scale", "precision"]


class Trial(Record):
    """One change, really run: would the step have been applied with it?"""

    kind: ClassVar[str] = "trial"

    name: str = Field(description="what was changed, in a few words")
    good: bool = Field(description="finite, and after a spike within what healthy steps had")
    loss: float = float("nan")
    grad_norm: float = float("nan")
    note: str = ""


class Cure(Record):
    """The change to make, with the trial that showed it to work."""

    kind: ClassVar[str] = "cure"

    what: CureKind
    sentence: str
    trial: str = Field(description="name of the trial that was good")
    patch: str = Field(default="", description="lines for a config, a plan or the source")


class Autopsy(Record):
    """The cause of death, as far as it was seen; nothing in it is guessed."""

    kind: ClassVar[str] = "autopsy"

    incident: str
    step: StepRow
    cause: Cause | None
    reproduced: Reproduced
    how: str = Field(description="what the step was run with")
    differences: tuple[str, ...] = Field(
        default=(), description="what is not as it was when the step broke"
    )
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
