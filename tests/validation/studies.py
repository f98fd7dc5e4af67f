"""Studies made of numbers that are known, for the verdict and for the pages."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from halfguard.records.study import Curve, RunResult, Speed, Study

BASELINE = [0.8863, 0.8871, 0.8850, 0.8869, 0.8858]


def spec(candidates: Sequence[str], count: int, **changes: Any) -> dict[str, Any]:
    """A specification as ``Spec.dump`` gives it."""
    return {
        "name": "ocr",
        "entry": "train.py:job",
        "command": None,
        "baseline": {"name": "fp32", "precision": "fp32", "guard": None, "plan": None},
        "candidates": [{"name": name, "precision": "fp16-mixed"} for name in candidates],
        "seeds": list(range(count)),
        "steps": 40,
        "metric": {"name": "hmean", "higher_is_better": True},
        "thresholds": {"pass": 0.01, "marginal": 0.02, "speedup": 0.1, "memory": None},
    } | changes


def curve(seed: int, steps: int = 40, *, bad: Sequence[int] = (), scale: float = 1.0) -> Curve:
    generator = random.Random(seed)
    loss = [2.0 * math.exp(-3 * i / steps) + 0.1 + 0.02 * generator.random() for i in range(steps)]
    norms = [1.5 * math.exp(-i / steps) * generator.uniform(0.8, 1.2) for i in range(steps)]
    for step in bad:
        norms[step] = math.nan
    scales = [scale * 2.0 ** min(i * 6 // steps, 3) for i in range(steps)]
    return Curve(
        steps=tuple(range(steps)),
        loss=tuple(loss),
        grad_norm=tuple(norms),
        scale=tuple(scales) if scale != 1 else (1.0,) * steps,
    )


def run(name: str, seed: int, metric: float | None, **changes: Any) -> RunResult:
    values: dict[str, Any] = {
        "candidate": name,
        "precision": "fp32" if name == "fp32" else "fp16-mixed",
        "seed": seed,
        "metrics": {} if metric is None else {"hmean": metric},
        "steps": 40,
        "skipped": 0 if name == "fp32" else 2,
        "curve": curve(seed, scale=1.0 if name == "fp32" else 65536.0),
        "peak_bytes": 4_200_000_000 if name == "fp32" else 2_900_000_000,
        "duration": 12.5,
        "environment": {"torch": "2.13", "device": "cpu"},
        "initial_weights": f"w{seed}",
        "batch_order": f"b{seed}",
    }
    return RunResult(**(values | changes))


def study(
    candidates: Mapping[str, Sequence[float | None]],
    baseline: Sequence[float | None] = BASELINE,
    **changes: Any,
) -> Study:
    """A study from the metrics of its runs; None is a run that broke."""
    arms = {"fp32": baseline, **candidates}
    runs = [
        run(
            name, seed, value, **({} if value is not None else {"failure": "loss is NaN at step 7"})
        )
        for name, values in arms.items()
        for seed, value in enumerate(values)
    ]
    asked = spec(list(candidates), len(baseline), **changes)
    speeds = tuple(
        Speed(candidate=name, ratio=1.18, low=1.15, high=1.21, pairs=40) for name in candidates
    )
    return Study(name=asked["name"], spec=asked, runs=tuple(runs), speeds=speeds)


def losing(loss: float, baseline: Sequence[float] = BASELINE, wobble: float = 0.001) -> list[float]:
    """Metrics of a candidate that loses ``loss`` on average, with a little noise."""
    signs = [(-1) ** i * wobble for i in range(len(baseline))]
    middle = sum(signs) / len(signs)
    return [value * (1 - loss + sign - middle) for value, sign in zip(baseline, signs, strict=True)]
