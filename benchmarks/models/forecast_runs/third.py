"""The third 20 drifting and 20 stable runs, chosen by the FP32 reference alone.

The comments give that reference with seed 0: for drifting runs the step, from 0, at which a module's output
passes FP16's largest value; for stable ones the largest output up to 300 steps after the end.
"""

from __future__ import annotations

import math
from functools import partial

from benchmarks.models.forecast_runs import third_densities as densities
from benchmarks.models.forecast_runs import third_games as games
from benchmarks.models.forecast_runs import third_images as images
from benchmarks.models.forecast_runs import third_sequences as sequences
from benchmarks.models.forecast_runs import third_tables as tables
from benchmarks.models.forecast_runs import third_values as values
from benchmarks.models.forecast_runs.base import warmup, warmup_cosine
from benchmarks.models.planted.base import Drift


def wave(step: int) -> float:
    """Return the daily cases of an epidemic that comes and goes."""
    return 100 + 1e4 * math.exp(-(((step - 450) / 150) ** 2))


DRIFTING: tuple[Drift, ...] = (
    # step 242
    Drift("energies of a deeper net", partial(games.energy, lr=1e-3, depth=4)),
    # step 508
    Drift(
        "step counts over longer windows",
        partial(sequences.growing_window, length=lambda step: 8 + step // 4, pace=300.0, lr=1e-2),
    ),
    # step 458
    Drift("unlearning by ascent", partial(sequences.unlearning, lr=1e-3)),
    # step 598
    Drift("critic without clipping", partial(games.wasserstein, lr=5e-3, slower=0.01)),
    # step 243
    Drift("energies without a penalty", partial(games.energy, lr=2e-3)),
    # step 266
    Drift("triplets without a margin", partial(games.triplets, lr=3e-3)),
    # step 382
    Drift("temperature in a narrow cone", partial(games.pairs, lr=1e-2, cone=300.0)),
    # step 505
    Drift("preferences at a small beta", partial(games.preferences, beta=1e-4, lr=3e-3)),
    # step 689
    Drift("precision of exact readings", partial(densities.variances, noise=0.0, lr=1.5e-2)),
    # step 688
    Drift("component on a repeated age", partial(densities.mixture, lr=1e-2)),
    # step 849
    Drift("weight of a solved task", partial(densities.task_weights, noise=0.0, lr=2e-2)),
    # step 657
    Drift(
        "growing epidemic",
        partial(densities.epidemic, cases=lambda step: 100 * 1.009**step, lr=2e-2),
    ),
    # step 443
    Drift("values of large rewards", partial(values.bootstrap, reward=2e3, gamma=0.999, lr=3e-2)),
    # step 726
    Drift("off-policy values", partial(values.off_policy, lr=0.02, gamma=0.99)),
    # step 324
    Drift("raw play counts", partial(tables.plays, count=2e5, lr=0.15)),
    # step 441
    Drift(
        "house prices in dollars, after a warm-up",
        partial(tables.prices, mean=3e5, lr=3e-3, factor=warmup(200)),
    ),
    # step 289
    Drift("pressure in pascals", partial(tables.atmosphere, ground=101_325.0, lr=1.2e-2)),
    # step 604
    Drift(
        "ever larger graphs",
        partial(tables.graphs, size=lambda step: 30 * 1.004**step, lr=8e-3, steps=700),
    ),
    # step 643
    Drift("rate a little too high", partial(images.long_steps, excess=1.008)),
    # step 327
    Drift(
        "sum over growing batches",
        partial(images.long_steps, excess=0.98, size=lambda step: 256 + step // 40, total=True),
    ),
)

STABLE: tuple[Drift, ...] = (
    # at most 293
    Drift(
        "attention with norms, one cycle",
        partial(
            sequences.copying,
            lr=2e-2,
            scale=24**-0.5,
            qk_norm=True,
            decay=0.01,
            steps=600,
            factor=warmup_cosine(200, 600),
        ),
    ),
    # at most 2,737
    Drift(
        "attention without norms, cosine",
        partial(sequences.copying, lr=3e-2, steps=600, factor=warmup_cosine(50, 600)),
    ),
    # at most 91
    Drift("gated layers", partial(sequences.gated_stack, lr=1e-2, steps=700)),
    # at most 34,895
    Drift(
        "step counts over an hour",
        partial(
            sequences.growing_window,
            length=lambda step: min(60, 8 + step // 4),
            pace=300.0,
            lr=1e-2,
            steps=700,
        ),
    ),
    # at most 47
    Drift("unlearning up to a bound", partial(sequences.unlearning, lr=1e-3, bound=8.0)),
    # at most 27,041
    Drift(
        "load through the seasons",
        partial(sequences.load_forecast, unit=15e3, swing=0.3, lr=1e-2),
    ),
    # at most 15
    Drift("clipped critic", partial(games.wasserstein, lr=2e-3, slower=0.5, clip=0.3)),
    # at most 10,177
    Drift("energies with a penalty", partial(games.energy, lr=3e-3, penalty=1e-4)),
    # at most 1,578
    Drift("triplets with a margin", partial(games.triplets, lr=3e-3, margin=200.0)),
    # at most 820
    Drift("temperature in a wide cone", partial(games.pairs, lr=1e-2, cone=10.0, noise=0.2)),
    # at most 5,774
    Drift(
        "preferences with mistakes",
        partial(games.preferences, beta=1e-3, lr=3e-3, mistakes=0.1),
    ),
    # at most 8,899
    Drift("precision of noisy readings", partial(densities.variances, noise=0.01, lr=1.5e-2)),
    # at most 8
    Drift("flow on dequantized pixels", partial(densities.flow, dequantize=0.05, lr=1e-2)),
    # at most 9,726
    Drift("mixture on exact ages", partial(densities.mixture, lr=1e-2, jitter=0.01)),
    # at most 21,659
    Drift("epidemic that passes", partial(densities.epidemic, cases=wave, lr=2e-2)),
    # at most 18,406
    Drift(
        "values of discounted rewards",
        partial(values.bootstrap, reward=150.0, gamma=0.99, lr=3e-2, follow=0.5),
    ),
    # at most 935
    Drift("slow throttle", partial(values.throttle, lr=3e-3)),
    # at most 33,336
    Drift("house prices in thousands", partial(tables.prices, mean=15e3, lr=3e-3)),
    # at most 27,550
    Drift("samples of speech", partial(images.speech, lr=1e-2, loud=6000.0)),
    # at most 26,320
    Drift("spectra with cosmic rays", partial(images.spectra, lr=3e-3, bright=4000.0, rare=0.02)),
)
