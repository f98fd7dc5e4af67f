"""A run as a tracker logged it, and the one number of it that is compared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from halfguard.errors import UsageError

_LOWER = {
    "loss", "losses", "error", "err", "perplexity", "ppl", "nll", "ce", "bce", "kl", "mse", "rmse", "mae",
    "mape", "wer", "cer", "fid", "bpb", "bpc",
}  # fmt: skip
_HIGHER = {
    "acc", "accuracy", "f1", "auc", "auroc", "map", "iou", "miou", "dice", "recall", "bleu", "rouge", "ndcg",
    "mrr", "hmean", "psnr", "ssim", "r2", "reward", "top1", "top5",
}  # fmt: skip
_TAIL = 0.2  # the share of a run that "tail" takes, as validate does for a training loss


class At(StrEnum):
    """Which of the logged values is compared."""

    LAST = "last"
    BEST = "best"
    TAIL = "tail"


@dataclass
class Series:
    """The values of one metric, in the order in which they were logged."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def by_step(self) -> Series:
        """Return the values by ascending step; values of one step stay in their order."""
        pairs = sorted(zip(self.steps, self.values, strict=True), key=lambda pair: pair[0])
        return Series([step for step, _ in pairs], [value for _, value in pairs])

    def take(self, at: At, *, higher_is_better: bool) -> float:
        """Return the value of the run; the values are ordered by step.

        A run that ends with a non-finite value has that value, whatever was logged before: it diverged.
        """
        last = self.values[-1]
        if at is At.LAST or not math.isfinite(last):
            return last
        if at is At.TAIL:
            tail = self.values[-max(1, round(_TAIL * len(self.values))) :]
            return sum(tail) / len(tail)
        finite = [value for value in self.values if math.isfinite(value)]
        return max(finite) if higher_is_better else min(finite)

    @property
    def nonfinite(self) -> int:
        """The number of values that are NaN or infinite."""
        return sum(not math.isfinite(value) for value in self.values)


class MetricLog(dict[str, Series]):
    """Metrics that grow while a file is read."""

    def add(self, name: str, step: int, value: float) -> None:
        series = self.setdefault(name, Series())
        series.steps.append(step)
        series.values.append(value)


@dataclass
class LoggedRun:
    """One run, read from the files of a tracker.

    ``failure`` says why training failed. ``unfinished`` says why its end is unknown: it may still be running,
    or was killed, or the rest of its file is damaged.
    """

    place: str
    name: str = ""
    metrics: MetricLog = field(default_factory=MetricLog)
    config: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # group, experiment, tags and the like
    failure: str | None = None
    unfinished: str | None = None
    seconds: float = math.nan
    seed: int | None = None
    seed_source: str = ""  # where the seed was found
    series: Series | None = None  # that is compared, by step; None if it was not logged

    @property
    def settings(self) -> dict[str, str]:
        """Labels and configuration as text, nested names joined by dots."""
        return {name: str(value) for name, value in _flatten(self.config)} | self.labels


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def guess_direction(metric: str) -> bool:
    """Return whether higher is better, if the metric's name leaves no doubt; else raise."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = bool(words & _LOWER), bool(words & _HIGHER)
    if lower == higher:
        raise UsageError(
            f"Whether a higher or a lower {metric} is better cannot be inferred from its name.",
            cure="Add --higher-is-better or --lower-is-better.",
        )
    return higher
