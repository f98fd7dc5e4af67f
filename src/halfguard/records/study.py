"""A study: the runs that compare 16 bits with 32 bits, and their speed.

The runs are the only evidence: a verdict is a function of a ``Study``, and a sign-off is bound to its
``digest``. A run that did not finish is part of the evidence too; ``failure`` says why.
"""

from __future__ import annotations

import hashlib
import json
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
    skipped: int = Field(default=0, ge=0, description="attempts that changed no weight")
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
