"""A study: the runs that compare 16 bits with 32, and how fast each of them stepped.

The runs are the evidence and nothing else is: a verdict is a function of a ``Study``, and a sign-off is
bound to its ``digest``. A run that did not finish is part of the evidence too; it says why in ``failure``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from halfguard.records.base import Record


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Curve(_Part):
    """Training as it went, one entry a step; empty where the script does not tell."""

    steps: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = Field(default=(), description="unscaled, before clipping")
    scale: tuple[float, ...] = Field(
        default=(), description="the loss scale; 1 where there is none"
    )

    @model_validator(mode="after")
    def _level(self) -> Self:
        lengths = {len(self.steps), len(self.loss), len(self.grad_norm), len(self.scale)}
        if len(lengths) > 1:
            raise ValueError("steps, loss, grad_norm and scale must be equally long")
        return self


class RunResult(Record):
    """One training run: a candidate, or the baseline, with one seed."""

    kind: ClassVar[str] = "run-result"

    candidate: str = Field(description="its name in the spec; the baseline's too")
    precision: str
    seed: int
    metrics: dict[str, float]
    steps: int = Field(ge=0, description="update attempts")
    skipped: int = Field(default=0, ge=0, description="attempts that changed no weight")
    retried: int = Field(default=0, ge=0, description="applied, after a repetition in FP32")
    curve: Curve = Curve()
    peak_bytes: int | None = Field(default=None, description="largest memory in use, if measured")
    duration: float = Field(description="seconds of training and evaluation")
    failure: str | None = Field(default=None, description="why it did not finish")
    cause: Literal["budget", "metric"] | None = Field(
        default=None,
        description="what ended it, if not itself: the budget of time; or its metric is missing",
    )
    attempt: int = Field(default=1, ge=1, description="1, or more if workers died before")
    environment: dict[str, str] = Field(default_factory=dict)
    initial_weights: str | None = Field(default=None, description="digest, before the first step")
    batch_order: str | None = Field(
        default=None, description="digest of the batches in their order"
    )

    @property
    def lost(self) -> bool:
        """Whether the machine failed, or the time ran out: nothing was shown about the candidate."""
        return self.failure is not None and self.steps == 0 and not self.environment


class Speed(Record):
    """Step time of the baseline over that of a candidate, measured in turns; above 1 is faster."""

    kind: ClassVar[str] = "speed"

    candidate: str
    ratio: float = Field(description="the median")
    low: float
    high: float
    pairs: int = Field(ge=0, description="pairs of steps that were compared")

    @property
    def lost(self) -> bool:
        """Whether it was the machine that failed, so that nothing was measured."""
        return self.pairs == 0


class Study(Record):
    """All runs of a spec, in its order: candidates as listed, seeds ascending within them."""

    kind: ClassVar[str] = "study"

    name: str
    spec: dict[str, Any] = Field(description="as it was validated")
    runs: tuple[RunResult, ...]
    speeds: tuple[Speed, ...] = ()

    def digest(self) -> str:
        """SHA-256 of the study in canonical JSON: what a sign-off is bound to."""
        body = json.loads(self.to_json())
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
