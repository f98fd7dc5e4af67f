"""Small architectures with one planted failure each, and healthy ones full of intended infinities.

Every planted failure makes a job (model, loss function, batch) from a seed, and says what broke: the
operation, the module and, by a comment ``# <- its-name`` at its end, the line.
"""

from __future__ import annotations

from benchmarks.models.zoo import (
    attention,
    conv,
    detector,
    graph,
    healthy,
    mlp,
    moe,
    norms,
    recommender,
    rnn,
    vae,
)
from benchmarks.models.zoo.base import Job, PlantedFailure, line_of

PLANTED_FAILURES: tuple[PlantedFailure, ...] = (
    *mlp.PLANTED_FAILURES,
    *attention.PLANTED_FAILURES,
    *norms.PLANTED_FAILURES,
    *conv.PLANTED_FAILURES,
    *rnn.PLANTED_FAILURES,
    *graph.PLANTED_FAILURES,
    *moe.PLANTED_FAILURES,
    *vae.PLANTED_FAILURES,
    *detector.PLANTED_FAILURES,
    *recommender.PLANTED_FAILURES,
)
HEALTHY = healthy.HEALTHY

__all__ = ["HEALTHY", "PLANTED_FAILURES", "Job", "PlantedFailure", "line_of"]
