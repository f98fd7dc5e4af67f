"""Numbers that a script prints, such as its own validation metric: how those of two runs compare.

Losses tell only how a script trains. What it computes after that, with an average of weights, a checkpoint or
another cast in the validation loop, is known only by what it prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import mean, stdev

_NUMBER = re.compile(
    r"(?<![\w.])(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|-?nan|-?inf)(?![\w/]|\.\d)", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z_][\w/@]*")
_OTHER = re.compile(
    r"time|took|elapsed|sec|speed|memory|skip|scale|seed|param|bytes|dtype|version|device"
    r"|(^|_)(lr|ms|mb|gb|s|steps?|epochs?|it|iter|iters|iterations?|batch|line|rank|of|pid)$",
    re.IGNORECASE,
)
_OF_SCALER = re.compile(r"skip|overflow|scaler|loss_scale", re.IGNORECASE)  # FP32 has none
_HIGHER = re.compile(
    r"acc|auc|f1|score|^r2|iou|dice|psnr|ssim|corr|recall|precision|hit|ndcg|reward|success|bleu|rouge",
    re.IGNORECASE,
)
_LOWER = re.compile(
    r"loss|err|mse|mae|rmse|mape|nll|ppl|perplex|bp[cd]$|(^|_)[wc]er$|resid|chamfer|epe$|deviation",
    re.IGNORECASE,
)
_MOST_WORDS = 6  # before a number: more are prose
_FAR = 0.5  # of the number in FP32
_FARTHER = 1.2  # times the distance of the script as it is
_LOW = 0.03  # of a metric that should be high
_HIGH = 0.15  # of one that should be low, and this part of the way that it has come
_WAY = 0.05
_OTHERWISE = 0.2  # of a number that is neither
_STEADY = 2.0  # standard deviations over the seeds


def numbers(printed: str) -> dict[str, list[float]]:
    """Return the numbers that were printed after the same words; times, rates and counts are left out."""
    found: dict[str, list[float]] = {}
    for line in printed.splitlines():
        end = 0
        for number in _NUMBER.finditer(line):
            words, end = _WORD.findall(line[end : number.start()]), number.end()
            is_other = not words or _OTHER.search(words[-1]) or any(map(_OF_SCALER.search, words))
            if not is_other and len(words) <= _MOST_WORDS:
                found.setdefault(" ".join(words), []).append(float(number[1]))
    return found


def last_numbers(printed: str) -> dict[str, float]:
    """Return the last number that was printed after the same words."""
    return {name: values[-1] for name, values in numbers(printed).items()}


def worse_numbers(now: str, full: str) -> dict[str, tuple[float, float]]:
    """Return the numbers of a run that are worse than those in FP32, beside these; the worst come first."""
    right = numbers(full)
    found = dict[str, tuple[float, tuple[float, float]]]()
    for name, number in last_numbers(now).items():
        values = right.get(name, [math.nan])
        if math.isfinite(values[-1]) and (by := _shortfall(name, number, values)) > 1:
            found[name] = by, (number, values[-1])
    return {name: pair for name, (_, pair) in sorted(found.items(), key=lambda one: -one[1][0])}


def is_as_good(now: str, full: str) -> bool:
    """Return whether both runs print a metric other than a loss, and none of these is worse than in FP32."""
    known = last_numbers(now)
    metrics = {
        name for name in last_numbers(full) if better_is(name) and "loss" not in name.lower()
    }
    return (
        bool(metrics) and metrics <= known.keys() and not metrics & worse_numbers(now, full).keys()
    )


def _shortfall(name: str, number: float, values: Sequence[float]) -> float:
    """Return by how many times what is tolerated a number is worse than the last one in FP32."""
    last, finite = values[-1], [one for one in values if math.isfinite(one)]
    if not math.isfinite(number):
        return math.inf
    sign = better_is(name)
    if sign > 0:
        return (last - number) / (_LOW * abs(last) or math.inf)
    way = _WAY * (max(finite) - min(finite))
    if sign < 0:
        return (number - last) / ((_HIGH * abs(last) + way) or math.inf)
    return abs(number - last) / ((_OTHERWISE * max(abs(number), abs(last)) + way) or math.inf)


def better_is(name: str) -> int:
    """Return 1 for a number that should be high, -1 for one that should be low, 0 if that is unknown."""
    for word in reversed(name.split()):
        if _LOWER.search(word):
            return -1
        if _HIGHER.search(word):
            return 1
    return 0


def is_beyond_noise(name: str, now: Sequence[float], full: Sequence[float]) -> bool:
    """Return whether a number is worse than in FP32 with each of some seeds, and by about as much."""
    if not all(map(math.isfinite, full)):
        return False
    if not all(map(math.isfinite, now)):
        return True
    pairs = list(zip(now, full, strict=True))
    if not all(_shortfall(name, a, [b]) > 1 for a, b in pairs):
        return False
    is_ratio = better_is(name) < 0 and min(*now, *full) > 0
    apart = [math.log(a / b) if is_ratio else a - b for a, b in pairs]
    return abs(mean(apart)) > _STEADY * stdev(apart)


def farther(before: str, now: str, full: str) -> str:
    """Return which number of a patched script is farther from FP32 than it was before; empty if none is."""
    then, in_fp32 = last_numbers(before), last_numbers(full)
    for name, number in last_numbers(now).items():
        right = in_fp32.get(name, math.nan)
        old = then.get(name, math.nan)
        apart = abs(number - right)
        is_far = apart > _FAR * abs(right) and apart > _FARTHER * abs(old - right)
        if math.isfinite(right) and (is_far or not math.isfinite(number)):
            return f"it prints {name} {number:.4g} (FP32: {right:.4g}; before: {old:.4g})"
    return ""


def compare_last(now: str, full: str) -> str:
    """Return the last number that both runs print, beside that of FP32; empty if there is none."""
    in_fp32 = last_numbers(full)
    both = [(name, number) for name, number in last_numbers(now).items() if name in in_fp32]
    return (
        ""
        if not both
        else f"printed {both[-1][0]}: {both[-1][1]:.4g} (FP32: {in_fp32[both[-1][0]]:.4g})"
    )
