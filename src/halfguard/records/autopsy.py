"""The result of replaying an incident: whether it was reproduced, where it began, what prevents it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import Record
from halfguard.records.culprit import Culprit
from halfguard.records.step import Cause, StepRow

Reproduced = Literal["bitwise", "same fault", "no"]
CureKind = Literal["data", "weights", "operation", "island", "scale", "precision"]


class ReplayTrial(Record):
    """The incident's step, run again with one change."""

    kind: ClassVar[str] = "trial"

    name: str = Field(description="the change, in a few words")
    good: bool = Field(description="finite; after a spike, also within the range of healthy steps")
    loss: float = float("nan")
    grad_norm: float = float("nan")
    note: str = ""
    error_as_written: float | None = Field(
        default=None, description="relative error of the gradients against FP32 as written"
    )
    error_as_meant: float | None = Field(
        default=None, description="the same against float64 of what the code means"
    )
    largest_scale: float | None = Field(
        default=None, description="largest loss scale tried at which the step is finite"
    )


class Cure(Record):
    """The recommended change, and the trial that showed that it works."""

    kind: ClassVar[str] = "cure"

    what: CureKind
    sentence: str
    trial: str = Field(description="name of the trial that was good")
    patch: str = Field(default="", description="lines for a config, a plan or the source")
    scale: float | None = Field(
        default=None,
        description="loss scale to start with, if the initial one is too high for this step",
    )


def is_source_patch(patch: str) -> bool:
    """Return whether a patch is one of the source, not lines for a config or a plan."""
    return patch.startswith("--- ")


class Autopsy(Record):
    """The findings of a replay; everything in it was observed, nothing is guessed."""

    kind: ClassVar[str] = "autopsy"

    incident: str
    step: StepRow
    cause: Cause | None
    reproduced: Reproduced
    how: str = Field(description="precision, loss scale and device of the repeated step")
    differences: tuple[str, ...] = Field(
        default=(), description="differences from the original run"
    )
    culprit: Culprit | None = None
    way: tuple[str, ...] = Field(default=(), description="modules that passed it on, in order")
    samples: tuple[int, ...] = Field(default=(), description="samples of the batch that cause it")
    micro_batch: int = 0
    trials: tuple[ReplayTrial, ...] = ()
    saturation: float | None = Field(
        default=None,
        description="relative difference of the gradients of FP32 as written and float64 as meant",
    )
    cure: Cure | None = None
    suspects: tuple[str, ...] = Field(
        default=(), description="possible causes if it was not reproduced"
    )
