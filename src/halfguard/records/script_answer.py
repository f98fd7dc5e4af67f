"""The answer of ``halfguard why``: where the first bad number of a script arose, and what prevents it."""

from __future__ import annotations

from math import nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.audit import AuditFinding
from halfguard.records.autopsy import Culprit, Cure, ReplayTrial
from halfguard.records.base import Record

Outcome = Literal[
    "non-finite value", "trains wrongly", "nothing bad", "crashed", "interrupted", "no training"
]
InFP32 = Literal["fine", "fails", "unknown"]


class ScriptAnswer(Record):
    """What was found about one run of a script. All of it was observed; ``advice`` was not tested."""

    kind: ClassVar[str] = "script answer"

    script: str = Field(description="the command, without the halfguard prefix")
    outcome: Outcome
    code: str = Field(default="", description="of the failure, in the catalogue; empty if none")
    precision: str = Field(
        default="",
        description="the precision that really ran, such as FP16 autocast; empty if unknown",
    )
    steps: int = Field(default=0, description="optimizer steps that were seen")
    backward: int = Field(default=0, description="backward passes that were seen")
    seconds: float = Field(default=0.0, description="time of the first pass")
    error: str = Field(default="", description="the exception that ended the script")
    log: str = Field(default="", description="last lines that the script printed, if it crashed")
    rank: int | None = Field(default=None, description="the rank where it began, of several")

    # a bad number
    step: int | None = Field(default=None, description="optimizer steps before it, counted from 0")
    bad_backward: int | None = Field(default=None, description="backward passes before it")
    event: str = Field(default="", description="where it was seen")
    loss: float = nan
    scale: float = 1.0
    culprit: Culprit | None = None
    cause: str = Field(
        default="", description="the user's line that led to it, if it arose in a library"
    )
    reason: str = Field(
        default="", description="why the operation has no finite result at its inputs, as a clause"
    )
    exact: str = Field(default="", description="the same operation in FP64 on the same inputs")
    repeated: str = Field(default="", description="whether the second run reproduced the first")
    in_fp32: InFP32 = "unknown"
    trials: tuple[ReplayTrial, ...] = ()
    cure: Cure | None = None
    advice: str = ""

    # a run without one
    loss_scale: str = Field(default="", description="what the scaler did")
    headroom: str = Field(default="", description="how close 16-bit tensors came to their limit")
    swallowed: tuple[AuditFinding, ...] = ()

    notes: tuple[str, ...] = Field(default=(), description="limits of this answer")
    next: str = Field(default="", description="a command to try")

    @property
    def exited_early(self) -> bool:
        """True if the script ended itself with an error before it trained, as without its options."""
        return self.error.startswith("SystemExit") and not self.backward and not self.steps
