"""Studies whose truth is known, thousands at a time: how often is a verdict wrong, how often is there one?

``python -m tests.validation.simulation [STUDIES]`` prints the figures that docs/explanation/verdict.md shows.
The tests run the same code with 2,000 studies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from halfguard.records.study import VerdictLabel
from halfguard.validation.judgement.statistics import (
    Claims,
    Criteria,
    Floats,
    claims,
    holm,
    seeds_needed,
)
from halfguard.validation.judgement.verdict import verdict_labels

TERMS = Criteria()  # 1% and 2%, higher is better
SEED_NOISE = 0.03  # what a change of seed does to both of a pair


def _lognormal(generator: Generator, shape: tuple[int, ...]) -> Floats:
    raw = generator.lognormal(0.0, 0.5, shape)
    return (raw - np.exp(0.125)) / np.sqrt((np.exp(0.25) - 1) * np.exp(0.25))


# Noise of mean 0 and standard deviation 1; it is added to the candidate's loss of quality.
SHAPES: dict[str, Callable[[Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "uniform": lambda generator, shape: generator.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "heavy tails (t, 3 degrees)": lambda g, shape: g.standard_t(3, shape) / np.sqrt(3),
    "rarely much better (skew -1.75)": lambda generator, shape: -_lognormal(generator, shape),
    "rarely much worse (skew 1.75)": _lognormal,
    "one seed in 20 loses 4 deviations": lambda g, shape: (
        (g.standard_normal(shape) + 4 * (g.random(shape) < 0.05) - 0.2)
        / np.sqrt(1 + 16 * 0.05 * 0.95)
    ),
    "exponential losses (skew 2)": lambda g, shape: g.exponential(1.0, shape) - 1,
    "one seed in 20 loses 6.7 deviations": lambda g, shape: (
        (0.6 * g.standard_normal(shape) + 4 * (g.random(shape) < 0.05) - 0.2)
        / np.sqrt(0.36 + 16 * 0.05 * 0.95)
    ),
}


class Rates(NamedTuple):
    """Shares of studies, over their candidates."""

    any_pass: float  # studies in which at least one candidate passes
    passes: float
    marginal: float
    fails: float


def data(
    generator: Generator,
    studies: int,
    seeds: int,
    loss: float,
    noise: float,
    shape: str = "normal",
    candidates: int = 1,
) -> tuple[Floats, Floats]:
    """The metrics of the baseline (studies, 1, seeds) and of the candidates (studies, candidates, seeds).

    Both move together with the seed, as paired runs do, and the candidates share half of their noise.
    """
    baseline = 1 + SEED_NOISE * generator.standard_normal((studies, 1, seeds))
    own = SHAPES[shape](generator, (studies, candidates, seeds))
    if candidates > 1:
        shared = SHAPES[shape](generator, (studies, 1, seeds))
        own = (own + shared) / np.sqrt(2)
    return baseline, (1 - loss) * baseline - noise * own


def corrected(found: Claims) -> Claims:
    return Claims(*(holm(p) for p in found))


def fixed(baseline: Floats, candidate: Floats) -> Rates:
    """Every study judged once, at its end."""
    return _rates(verdict_labels(corrected(claims(baseline, candidate, TERMS))))


def extended(generator: Generator, studies: int, loss: float, noise: float) -> Rates:
    """Not planned, but done: five seeds, and where they do not tell, as many more as was advised."""
    baseline, candidate = data(generator, studies, 60, loss, noise)
    first = verdict_labels(claims(baseline[..., :5], candidate[..., :5], TERMS))
    verdict = first.copy()
    relative = (baseline - candidate)[..., :5] / baseline[..., :5].mean(-1, keepdims=True)
    for study in np.flatnonzero(first[:, 0] == VerdictLabel.INCONCLUSIVE):
        away = abs(TERMS.passing - relative[study, 0].mean())
        more = seeds_needed(away, float(relative[study, 0].std(ddof=1))) or 60
        count = min(max(more, 6), 60)
        found = claims(baseline[study, :, :count], candidate[study, :, :count], TERMS)
        verdict[study] = verdict_labels(found)
    return _rates(verdict)


def _rates(verdict: np.ndarray[tuple[int, ...], np.dtype[np.str_]]) -> Rates:
    passes = verdict == VerdictLabel.PASS
    return Rates(
        float(passes.any(-1).mean()),
        float(passes.mean()),
        float((verdict == VerdictLabel.MARGINAL).mean()),
        float((verdict == VerdictLabel.FAIL).mean()),
    )


def _row(name: str, at: Rates, none: Rates, planned: int) -> str:
    return f"| {name} | {planned} | {at.any_pass:.1%} | {none.passes:.1%} |"


def main() -> None:
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    generator = np.random.default_rng(2024)
    print(f"{studies} studies a figure.\n")
    print("| study | seeds | wrong PASS, loss = 1% | PASS, no loss |\n|---|---|---|---|")
    for noise in (0.0025, 0.005, 0.0075, 0.01):
        for candidates in (1, 3):
            seeds = seeds_needed(TERMS.passing, noise, 0.025 / candidates)
            assert seeds is not None
            at, none = (
                fixed(*data(generator, studies, seeds, loss, noise, candidates=candidates))
                for loss in (TERMS.passing, 0.0)
            )
            many = f", {candidates} candidates" if candidates > 1 else ""
            print(_row(f"noise {noise:.2%}{many}", at, none, seeds))
    for shape in SHAPES:
        for seeds in (5, 10):
            at, none = (
                fixed(*data(generator, studies, seeds, loss, 0.005, shape))
                for loss in (TERMS.passing, 0.0)
            )
            print(_row(shape, at, none, seeds))
    few = min(studies, 4000)
    at, none = (extended(generator, few, loss, 0.007) for loss in (TERMS.passing, 0.0))
    print(_row("noise 0.70%, extended once as advised", at, none, 5))


if __name__ == "__main__":
    main()
