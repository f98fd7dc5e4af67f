"""The result of ``mismatch``: how far the log-probabilities of rollout and trainer are apart, and why."""

from __future__ import annotations

from math import nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record

CauseKind = Literal[
    "temperature", "truncated sampling", "shifted tokens", "other prompt", "other weights",
    "adapter", "other dtype", "dropout", "unknown",
]  # fmt: skip


class Agreement(FloatRecordPart):
    """Two lists of log-probabilities of the same tokens: the second is that of the trainer, or exact."""

    name: str
    tokens: int
    mean: float = Field(
        description="of the difference, first minus second; the usual estimate of KL"
    )
    size: float = Field(description="root of the mean square of the difference")
    largest: float
    k3: float = Field(description="estimate of KL that is never negative: r - 1 - log r")
    chi2: float = Field(description="mean square of the ratio, minus 1")
    sample: float = Field(description="effective sample size, as a part of the tokens")
    outside: float = Field(description="share of tokens whose ratio leaves the clip range")


class LengthShare(FloatRecordPart):
    """The tokens at some positions of the completions."""

    first: int
    last: int
    outside: float
    size: float


class Cause(FloatRecordPart):
    """What rounding cannot explain, with the difference before and after it is taken into account."""

    kind: CauseKind
    side: Literal["rollout", "trainer"]
    sentence: str
    before: float = Field(description="size of the difference from the model in FP32")
    after: float = Field(
        default=nan, description="the same with the cause repeated; NaN: it is random"
    )
    rounding: float = Field(description="what rounding explains")


class MismatchReport(Record):
    """The mismatch of a batch of rollouts, its parts, and its cause."""

    kind: ClassVar[str] = "mismatch"

    sequences: int
    tokens: int
    clip: float
    trainer: str = Field(description="precision of the trainer, or 'recorded'")
    rollout_dtype: str = Field(description="precision that the size of the difference suggests")
    observed: Agreement = Field(description="rollout and trainer")
    parts: dict[str, float] = Field(description="size of the difference by its origin")
    variants: tuple[Agreement, ...] = Field(description="the same tokens recomputed, against FP32")
    same_precision: tuple[Agreement, ...] = Field(
        default=(),
        description="decoded with a KV cache, against whole sequences in the same precision",
    )
    lengths: tuple[LengthShare, ...] = ()
    causes: tuple[Cause, ...] = ()
    bf16_over_fp16: float = Field(default=nan, description="ratio of k3 against FP32")
    ratio_low: float = Field(default=nan, description="95% interval over sequences, in pairs")
    ratio_high: float = nan
    recommended: str = Field(
        default="", description="cheapest precision that stays in the clip range"
    )
    lines: tuple[str, ...] = Field(default=(), description="lines that round most, in the trainer")
    seconds: float = 0.0
