"""From a logged series to the one number that is compared, and the direction in which it is better."""

from __future__ import annotations

import math
import re
from enum import StrEnum

from halfguard.comparison.logged_run import Series
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


def take_value(series: Series, at: At, *, higher_is_better: bool) -> float:
    """Return the value of a run from the values of one metric, ordered by step.

    A run that ends with a non-finite value has that value, whatever was logged before: it diverged.
    """
    last = series.values[-1]
    if at is At.LAST or not math.isfinite(last):
        return last
    if at is At.TAIL:
        tail = series.values[-max(1, round(_TAIL * len(series.values))) :]
        return sum(tail) / len(tail)
    finite = [value for value in series.values if math.isfinite(value)]
    return max(finite) if higher_is_better else min(finite)


def up_to(series: Series, step: int | None) -> Series:
    """Return the series ordered by step, without what was logged after ``step``."""
    ordered = series.sorted_by_step()
    if step is None:
        return ordered
    kept = [pair for pair in zip(ordered.steps, ordered.values, strict=True) if pair[0] <= step]
    return Series([s for s, _ in kept], [value for _, value in kept])


def guess_direction(metric: str) -> bool:
    """Return whether higher is better, if the metric's name leaves no doubt; else raise."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = bool(words & _LOWER), bool(words & _HIGHER)
    if lower == higher:
        raise UsageError(
            f"Whether a higher or a lower {metric} is better cannot be told from its name.",
            cure="Add --higher-is-better or --lower-is-better.",
        )
    return higher
