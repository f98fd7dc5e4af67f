"""Six more drifting runs, in each of which an output of the forward pass leaves the range of FP16.

The comments give the FP32 reference with seed 0: the step, from 0, at which a module's output passes FP16's
largest value. Trained in FP16 under autocast, the same module's output is infinite at about the same step.
"""

from __future__ import annotations

from functools import partial

from benchmarks.models.forecast_runs import fourth_heads as heads
from benchmarks.models.forecast_runs import fourth_streams as streams
from benchmarks.models.forecast_runs.base import warmup
from benchmarks.models.planted.base import Drift

DRIFTING: tuple[Drift, ...] = (
    # step 606
    Drift(
        "residual features of the largest volume",
        partial(streams.coding_rate, lr=4e-4, depth=3),
    ),
    # step 431
    Drift("recurrent memory under a cosine", partial(streams.first_tokens, lr=1.3e-3, length=20)),
    # step 672
    Drift(
        "attention scores without a scale",
        partial(streams.nearest, lr=0.15, factor=warmup(600)),
    ),
    # step 684
    Drift(
        "word pairs of a growing corpus",
        partial(heads.cooccurrences, pairs=4000, lr=0.2),
    ),
    # step 604
    Drift(
        "results of a better player",
        partial(heads.compounding, lr=2e-3, value_lr=3e-2, stake=1000.0, gain=1.5),
    ),
    # step 555
    Drift("vibrations of a worn bearing", partial(heads.bearing, wear=1.01, lr=2e-3)),
)
