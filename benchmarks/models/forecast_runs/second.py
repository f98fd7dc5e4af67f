"""The second 20 drifting and 20 stable runs."""

from __future__ import annotations

import math
from functools import partial

from benchmarks.models.forecast_runs import signals, tables
from benchmarks.models.forecast_runs.base import drops, warmup, warmup_cosine
from benchmarks.models.planted.base import Drift

DRIFTING: tuple[Drift, ...] = (
    Drift("amplifier in 32 bits", partial(signals.amplifier, lr=1e-2, loudness=2e5)),
    Drift(
        "amplifier by squares",
        partial(signals.amplifier, lr=5e-3, loudness=1e5, squared=True, factor=warmup(100)),
    ),
    Drift("slow amplifier", partial(signals.amplifier, lr=4e-3, loudness=3e5)),
    Drift(
        "amplifier at falling rates",
        partial(signals.amplifier, lr=8e-3, loudness=1.5e5, factor=drops(200, 0.8)),
    ),
    Drift("steering", partial(signals.steering, lr=1e-2)),
    Drift("steering, cosine", partial(signals.steering, lr=1e-2, factor=warmup_cosine(50, 2000))),
    Drift("steering with friction", partial(signals.steering, lr=1e-2, friction=0.1)),
    Drift(
        "logs by a factor",
        partial(signals.long_logs, length=lambda step: 4 * 1.01**step, unit=1000.0, lr=2e-4),
    ),
    Drift(
        "growing logs",
        partial(signals.long_logs, length=lambda step: 4 + step / 12, unit=3000.0, lr=2e-4),
    ),
    Drift(
        "slowly growing logs",
        partial(signals.long_logs, length=lambda step: 2 + step / 20, unit=3000.0, lr=2e-4),
    ),
    Drift("revenue in cents", partial(tables.revenue, lr=1e-2, unit=1e5)),
    Drift("scattered revenue", partial(tables.revenue, lr=5e-3, unit=2e5, noise=0.3)),
    Drift(
        "revenue at falling rates",
        partial(tables.revenue, lr=1e-2, unit=1e5, factor=drops(200, 0.7)),
    ),
    Drift("router", partial(tables.routing, lr=5e-2)),
    Drift("router after a warm-up", partial(tables.routing, lr=3e-2, factor=warmup(100))),
    Drift("router with a weak penalty", partial(tables.routing, lr=5e-2, z_loss=1e-3)),
    Drift("triplets without a margin", partial(tables.triplets, lr=1e-4, factor=warmup(100))),
    Drift("events in a year", partial(tables.event_rates, lr=2e-3, rate=1e5)),
    Drift(
        "events after a warm-up", partial(tables.event_rates, lr=1e-3, rate=2e5, factor=warmup(100))
    ),
    Drift("events, slowly", partial(tables.event_rates, lr=6e-4, rate=1e6)),
)

STABLE: tuple[Drift, ...] = (
    Drift("amplifier in 16 bits", partial(signals.amplifier, lr=1e-2, loudness=2.5e4)),
    Drift("loud amplifier", partial(signals.amplifier, lr=5e-3, loudness=4e4, squared=True)),
    Drift(
        "amplifier, cosine",
        partial(signals.amplifier, lr=5e-3, loudness=1.5e4, factor=warmup_cosine(100, 800)),
    ),
    Drift("steering at a price", partial(signals.steering, lr=1e-2, effort=2e-5)),
    Drift(
        "steering with much friction",
        partial(signals.steering, lr=1e-2, friction=0.3, factor=drops(60, 0.3)),
    ),
    Drift(
        "steering at a low price",
        partial(signals.steering, lr=5e-3, effort=1e-5, factor=warmup(100)),
    ),
    Drift(
        "steering until the rate is 0",
        partial(signals.steering, lr=1e-2, factor=warmup_cosine(30, 200)),
    ),
    Drift(
        "logs up to 60",
        partial(signals.long_logs, length=lambda step: min(4 + step / 4, 60), unit=1000.0, lr=2e-4),
    ),
    Drift(
        "logs of the seasons",
        partial(
            signals.long_logs,
            length=lambda step: 30 + 20 * math.sin(step / 80),
            unit=1000.0,
            lr=2e-4,
        ),
    ),
    Drift(
        "logs in stages",
        partial(
            signals.long_logs,
            length=lambda step: 10 * min(1 + step // 200, 5),
            unit=800.0,
            lr=2e-4,
        ),
    ),
    Drift("revenue", partial(tables.revenue, lr=1e-2, unit=1e4)),
    Drift(
        "scattered revenue at falling rates",
        partial(tables.revenue, lr=2e-2, unit=8e3, noise=0.5, factor=drops(300, 0.3)),
    ),
    Drift("large revenue", partial(tables.revenue, lr=5e-3, unit=2e4, factor=warmup(100))),
    Drift(
        "router, cosine",
        partial(tables.routing, lr=5e-2, decay=0.1, factor=warmup_cosine(50, 600)),
    ),
    Drift("router with a penalty", partial(tables.routing, lr=5e-3, z_loss=1.0)),
    Drift("soft triplets", partial(tables.triplets, lr=1e-2, soft=True)),
    Drift("soft triplets that decay", partial(tables.triplets, lr=3e-3, soft=True, decay=1e-3)),
    Drift("events", partial(tables.event_rates, lr=2e-3, rate=1e4)),
    Drift(
        "events, cosine",
        partial(tables.event_rates, lr=2e-3, rate=6e3, factor=warmup_cosine(100, 800)),
    ),
    Drift("many events", partial(tables.event_rates, lr=1e-3, rate=1.5e4)),
)
