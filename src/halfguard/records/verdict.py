"""What a study proves, candidate by candidate, and who signed it off."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.base import Record

Answer = Literal["yes", "no", "unknown", "person"]
NAN = float("nan")


class Word(StrEnum):
    """The verdict in one word; every one but the last is a claim that is wrong at most one time in 40."""

    PASS = "PASS"  # noqa: S105 - the loss of quality is below the first threshold
    MARGINAL = "MARGINAL"  # it is above the first threshold, and below the second
    FAIL = "FAIL"  # it is above the second threshold, or a run broke that FP32 finished
    INCONCLUSIVE = "INCONCLUSIVE"  # the seeds do not tell


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Comparison(_Part):
    """One candidate against the baseline. Losses are shares of the baseline's mean; negative is better."""

    candidate: str
    precision: str
    word: Word
    reason: str = Field(description="why, in one sentence with its numbers")
    pairs: int = Field(ge=0, description="seeds that both finished")
    seeds: tuple[int, ...] = Field(default=(), description="of the pairs")
    losses: tuple[float, ...] = Field(default=(), description="of the pairs, in their order")
    baseline_mean: float = NAN
    candidate_mean: float = NAN
    loss: float = Field(default=NAN, description="of quality, on average")
    low: float = Field(default=-float("inf"), description="95% interval of the loss")
    high: float = float("inf")
    joint_low: float = Field(
        default=-float("inf"), description="interval that holds for all candidates at once"
    )
    joint_high: float = float("inf")
    noise: float = Field(default=NAN, description="standard deviation of the paired losses")
    p_pass: float = Field(default=1.0, description="after correction for several candidates")
    p_marginal: float = 1.0
    p_fail: float = 1.0
    further_seeds: int | None = Field(
        default=None, description="until an answer can be expected; None where none can"
    )
    broken: tuple[int, ...] = Field(
        default=(), description="seeds that broke while the baseline finished"
    )


class Effort(_Part):
    """What 16 bits brought and what it took: speed, memory, steps, gradients against the baseline's."""

    candidate: str
    speed: float | None = Field(default=None, description="step time of the baseline over its own")
    speed_low: float | None = None
    speed_high: float | None = None
    peak_bytes: int | None = Field(default=None, description="largest of its runs")
    memory: float | None = Field(default=None, description="peak over that of the baseline")
    steps: int = 0
    skipped: int = 0
    retried: int = 0
    nonfinite: int = Field(default=0, description="steps with a loss or a norm that is not finite")
    norm_ratio: float | None = Field(
        default=None, description="median gradient norm over the baseline's, same step and seed"
    )
    norm_largest: float | None = None
    norm_zero: int = Field(default=0, description="steps whose gradients were all zero")
    scale_low: float | None = None
    scale_high: float | None = None


class CheckItem(_Part):
    """One line of the checklist; a person answers what no evidence can."""

    code: str
    item: str
    answer: Answer
    evidence: str = ""


class Verdict(Record):
    """A function of the study and of nothing else."""

    kind: ClassVar[str] = "verdict"

    study: str
    evidence: str = Field(description="digest of the study that was judged")
    metric: str
    higher_is_better: bool
    baseline: str
    passing: float
    marginal: float
    level: float = Field(description="chance of each wrong claim that was allowed")
    sequential: bool = False
    planned: int = Field(default=0, description="seeds in the specification")
    comparisons: tuple[Comparison, ...]
    efforts: tuple[Effort, ...] = Field(description="the baseline's first, then the candidates'")
    checklist: tuple[CheckItem, ...] = ()
    way_back: tuple[str, ...] = Field(default=(), description="how to return to FP32")
    notes: tuple[str, ...] = Field(default=(), description="what a reader must know besides")

    @property
    def word(self) -> Word:
        """Of the study as a whole: PASS only if every candidate does."""
        words = {comparison.word for comparison in self.comparisons}
        order = (Word.FAIL, Word.INCONCLUSIVE, Word.MARGINAL)
        return next((word for word in order if word in words), Word.PASS)

    @property
    def exit_code(self) -> int:
        """0 if every candidate passes, else 1."""
        return 0 if self.word is Word.PASS else 1


class Approval(Record):
    """A sign-off: a name under the digests of everything that was there to be read."""

    kind: ClassVar[str] = "approval"

    by: str = Field(min_length=1)
    at: str = Field(description="ISO 8601, UTC")
    word: Word = Field(description="the verdict that was signed")
    evidence: str = Field(description="digest of the study")
    files: dict[str, str] = Field(
        default_factory=dict, description="SHA-256 of every file of the study, by its path"
    )


class Standing(_Part):
    """What a sign-off is worth now."""

    approval: Approval | None = None
    changed: tuple[str, ...] = Field(
        default=(), description="files that are not as they were signed"
    )

    @property
    def valid(self) -> bool:
        """Signed, and nothing has changed since."""
        return self.approval is not None and not self.changed
