"""A study (the runs that compare 16 bits with 32 bits, and their speed), its verdict and its sign-off.

The runs are the only evidence: a verdict is a function of a ``Study``, and a sign-off is bound to its
``digest``. A run that did not finish is part of the evidence too; ``failure`` says why.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from halfguard.records.base import FloatRecordPart, Record


class Curve(FloatRecordPart):
    """Values of every training step; empty if the script does not report them."""

    steps: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = Field(default=(), description="unscaled, before clipping")
    scale: tuple[float, ...] = Field(
        default=(), description="the loss scale; 1 where there is none"
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = {len(self.steps), len(self.loss), len(self.grad_norm), len(self.scale)}
        if len(lengths) > 1:
            raise ValueError("steps, loss, grad_norm and scale must have the same length")
        return self


class RunResult(Record):
    """One training run: a candidate or the baseline, with one seed."""

    kind: ClassVar[str] = "run-result"

    candidate: str = Field(description="name in the spec; the baseline has one too")
    precision: str
    seed: int
    metrics: dict[str, float]
    steps: int = Field(ge=0, description="update attempts")
    skipped: int = Field(default=0, ge=0, description="attempts that changed no weights")
    retried: int = Field(default=0, ge=0, description="applied, after a repetition in FP32")
    curve: Curve = Curve()
    peak_bytes: int | None = Field(default=None, description="largest memory in use, if measured")
    duration: float = Field(description="seconds of training and evaluation")
    failure: str | None = Field(default=None, description="why it did not finish")
    cause: Literal["budget", "metric", "unfinished"] | None = Field(
        default=None,
        description="why it failed, if not in training: out of time, no metric, or a log without an end",
    )
    attempt: int = Field(default=1, ge=1, description="more than 1 if earlier workers died")
    environment: dict[str, str] = Field(default_factory=dict)
    initial_weights: str | None = Field(default=None, description="digest, before the first step")
    batch_order: str | None = Field(default=None, description="digest of the batches in order")

    @property
    def lost(self) -> bool:
        """True if the machine failed or time ran out, so the candidate was not tested."""
        return self.failure is not None and self.steps == 0 and not self.environment


class Speed(Record):
    """Step time of the baseline over a candidate's, measured alternately; above 1 is faster."""

    kind: ClassVar[str] = "speed"

    candidate: str
    ratio: float = Field(description="the median")
    low: float
    high: float
    pairs: int = Field(ge=0, description="pairs of steps that were compared")

    @property
    def lost(self) -> bool:
        """True if nothing was measured because the machine failed."""
        return self.pairs == 0


class Study(Record):
    """All runs of a spec, in its order: by candidate, then by ascending seed."""

    kind: ClassVar[str] = "study"

    name: str
    spec: dict[str, Any] = Field(description="the validated spec")
    runs: tuple[RunResult, ...]
    speeds: tuple[Speed, ...] = ()

    def digest(self) -> str:
        """Return the SHA-256 of the study in canonical JSON, to which a sign-off is bound."""
        body = json.loads(self.to_json())
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


ChecklistAnswer = Literal["yes", "no", "unknown", "person"]
NAN = float("nan")


class VerdictLabel(StrEnum):
    """The result of a comparison. All but INCONCLUSIVE are claims; each is wrong at most 1 time in 40."""

    PASS = "PASS"  # noqa: S105 - the loss of quality is below the first threshold
    MARGINAL = "MARGINAL"  # it is above the first threshold and below the second
    FAIL = "FAIL"  # it is above the second threshold, or a run failed that FP32 finished
    INCONCLUSIVE = "INCONCLUSIVE"  # the seeds do not suffice


class Comparison(FloatRecordPart):
    """A candidate compared with the baseline. Losses are relative to its mean; negative is better."""

    candidate: str
    precision: str
    word: VerdictLabel
    reason: str = Field(description="why, in one sentence with numbers")
    pairs: int = Field(ge=0, description="seeds that both finished")
    seeds: tuple[int, ...] = Field(default=(), description="of the pairs")
    losses: tuple[float, ...] = Field(default=(), description="of the pairs, in the same order")
    baseline_mean: float = NAN
    candidate_mean: float = NAN
    loss: float = Field(default=NAN, description="mean degradation")
    low: float = Field(default=-float("inf"), description="95% interval of the degradation")
    high: float = float("inf")
    joint_low: float = Field(
        default=-float("inf"), description="interval for all candidates together"
    )
    joint_high: float = float("inf")
    noise: float = Field(default=NAN, description="standard deviation of the paired degradations")
    p_pass: float = Field(default=1.0, description="after correction for several candidates")
    p_marginal: float = 1.0
    p_fail: float = 1.0
    further_seeds: int | None = Field(
        default=None, description="seeds until an answer is likely; None if none is"
    )
    broken: tuple[int, ...] = Field(
        default=(), description="seeds that failed while the baseline finished"
    )


class TrainingStats(FloatRecordPart):
    """Speed, memory, steps and gradients of a candidate, compared with the baseline's."""

    candidate: str
    speed: float | None = Field(default=None, description="baseline's step time over its own")
    speed_low: float | None = None
    speed_high: float | None = None
    peak_bytes: int | None = Field(default=None, description="largest of its runs")
    memory: float | None = Field(default=None, description="peak over the baseline's")
    steps: int = 0
    skipped: int = 0
    retried: int = 0
    nonfinite: int = Field(default=0, description="steps with a non-finite loss or norm")
    norm_ratio: float | None = Field(
        default=None, description="median gradient norm over the baseline's, same step and seed"
    )
    norm_largest: float | None = None
    norm_zero: int = Field(default=0, description="steps whose gradients were all zero")
    scale_low: float | None = None
    scale_high: float | None = None


class CheckItem(FloatRecordPart):
    """One line of the checklist; a person answers what the evidence does not."""

    code: str
    item: str
    answer: ChecklistAnswer
    evidence: str = ""


class Verdict(Record):
    """The judgement of a study; it depends on the study alone."""

    kind: ClassVar[str] = "verdict"

    study: str
    evidence: str = Field(description="digest of the study that was judged")
    metric: str
    higher_is_better: bool
    baseline: str
    passing: float
    marginal: float
    level: float = Field(description="allowed probability of each wrong claim")
    planned: int = Field(default=0, description="seeds in the specification")
    comparisons: tuple[Comparison, ...]
    efforts: tuple[TrainingStats, ...] = Field(
        description="the baseline's first, then the candidates'"
    )
    checklist: tuple[CheckItem, ...] = ()
    way_back: tuple[str, ...] = Field(default=(), description="how to return to FP32")
    notes: tuple[str, ...] = Field(default=(), description="further notes for the reader")

    @property
    def word(self) -> VerdictLabel:
        """The verdict on the whole study: PASS only if every candidate passes."""
        words = {comparison.word for comparison in self.comparisons}
        order = (VerdictLabel.FAIL, VerdictLabel.INCONCLUSIVE, VerdictLabel.MARGINAL)
        return next((word for word in order if word in words), VerdictLabel.PASS)

    @property
    def exit_code(self) -> int:
        """0 if every candidate passes, else 1."""
        return 0 if self.word is VerdictLabel.PASS else 1


class Approval(Record):
    """A sign-off: who has read which study, and its verdict."""

    kind: ClassVar[str] = "approval"

    by: str = Field(min_length=1)
    at: str = Field(description="ISO 8601, UTC")
    word: VerdictLabel = Field(description="the verdict that was signed")
    evidence: str = Field(description="digest of the study")

    def covers(self, digest: str, verdict: Verdict) -> bool:
        """Return whether the study with this digest, and its verdict, are those that were signed."""
        return self.evidence == digest == verdict.evidence and self.word is verdict.word
