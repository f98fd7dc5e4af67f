"""The first 19 drifting and 20 stable runs."""

from __future__ import annotations

import math
from functools import partial

from benchmarks.models.forecast_runs import language, science, vision
from benchmarks.models.forecast_runs.base import drops, warmup, warmup_cosine
from benchmarks.models.planted.base import Drift

DRIFTING: tuple[Drift, ...] = (
    Drift("cells in millions", partial(vision.cells, lr=1e-2, count=2e5)),
    Drift("cells after a warm-up", partial(vision.cells, lr=1e-2, count=1e5, factor=warmup(100))),
    Drift(
        "cells at falling rates", partial(vision.cells, lr=4e-3, count=3e5, factor=drops(400, 0.5))
    ),
    Drift("patches", partial(vision.matching, lr=2e-3)),
    Drift("patches, cosine", partial(vision.matching, lr=1e-3, factor=warmup_cosine(100, 1500))),
    Drift("patches, little decay", partial(vision.matching, lr=1.5e-3, decay=0.5)),
    Drift("sharp pointer", partial(language.pointing, lr=5e-3, sharpen=True)),
    Drift(
        "sharp pointer after a warm-up",
        partial(language.pointing, lr=3e-3, sharpen=True, factor=warmup(150)),
    ),
    Drift("tally in cents", partial(language.tally, lr=1e-3, total=1e6)),
    Drift("slow tally", partial(language.tally, lr=5e-4, total=5e5)),
    Drift("word vectors", partial(language.skip_gram, lr=0.5)),
    Drift("word vectors, little decay", partial(language.skip_gram, lr=0.3, decay=0.003)),
    Drift("orbits outward", partial(science.curriculum, radius=lambda step: 2 + 0.2 * step)),
    Drift("orbits by a factor", partial(science.curriculum, radius=lambda step: 5 * 1.008**step)),
    Drift(
        "orbits with far probes",
        partial(science.curriculum, radius=lambda step: 2 + 0.1 * step, tails=0.5),
    ),
    Drift("echo", partial(science.self_training, gain=1.1, start=1.0, lr=0.1)),
    Drift(
        "echo after a warm-up",
        partial(science.self_training, gain=1.05, start=10.0, lr=0.2, factor=warmup(200)),
    ),
    Drift("ever louder sensor", partial(science.sensor, gain=100.0, loud=lambda step: 1.01**step)),
    Drift(
        "noisy sensor, slowly louder",
        partial(science.sensor, gain=1000.0, loud=lambda step: 1 + step / 20, noise=0.2),
    ),
)

STABLE: tuple[Drift, ...] = (
    Drift("cells in thousands", partial(vision.cells, lr=1e-2, count=2.5e4)),
    Drift(
        "normalized cells",
        partial(vision.cells, lr=1e-2, count=3e4, norm=True, factor=warmup_cosine(100, 1500)),
    ),
    Drift(
        "cells at halved rates", partial(vision.cells, lr=3e-3, count=5e4, factor=drops(300, 0.5))
    ),
    Drift(
        "patches until the rate is 0",
        partial(vision.matching, lr=2e-3, factor=warmup_cosine(20, 180)),
    ),
    Drift("balanced weights", partial(vision.scale_invariant, lr=1e-2, unit=2000.0, decay=0.1)),
    Drift(
        "balanced after a warm-up",
        partial(vision.scale_invariant, lr=1e-2, unit=4000.0, decay=0.5, factor=warmup(200)),
    ),
    Drift(
        "free weights, cosine",
        partial(
            vision.scale_invariant,
            lr=1e-2,
            unit=1500.0,
            decay=0.0,
            factor=warmup_cosine(100, 1200),
        ),
    ),
    Drift("pointer", partial(language.pointing, lr=1e-2)),
    Drift(
        "sharp pointer until the rate is 0",
        partial(language.pointing, lr=5e-3, sharpen=True, factor=warmup_cosine(30, 300)),
    ),
    Drift("tally in thousands", partial(language.tally, lr=1e-3, total=2e4)),
    Drift(
        "tally, cosine",
        partial(language.tally, lr=5e-4, total=4e4, factor=warmup_cosine(50, 1000)),
    ),
    Drift("word vectors with a hinge", partial(language.skip_gram, lr=0.5, hinge=3000.0)),
    Drift("decaying word vectors", partial(language.skip_gram, lr=0.5, decay=0.05)),
    Drift(
        "orbits up to 60", partial(science.curriculum, radius=lambda step: min(60, 2 + 0.3 * step))
    ),
    Drift(
        "orbits in and out",
        partial(science.curriculum, radius=lambda step: 40 + 15 * math.sin(step / 60)),
    ),
    Drift(
        "orbits in stages",
        partial(science.curriculum, radius=lambda step: 10.0 * min(1 + step // 150, 6)),
    ),
    Drift("noisy sensor", partial(science.sensor, gain=5000.0, noise=0.3, spikes=0.5)),
    Drift(
        "sensor that warms up",
        partial(science.sensor, gain=8000.0, loud=lambda step: 1 - math.exp(-(step + 5) / 200)),
    ),
    Drift("limited flow", partial(science.flow, lr=1e-3, width=12.0, limit=2.0)),
    Drift("damped echo", partial(science.self_training, gain=0.5, start=1000.0, lr=0.05)),
)
