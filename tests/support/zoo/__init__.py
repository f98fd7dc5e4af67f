"""Small architectures with one planted failure each, and healthy ones full of intended infinities.

Every plant makes a job (model, loss function, batch) from a seed, and says what broke: the operation, the
module and, by a comment ``# <- plant-name`` at its end, the line.
"""

from __future__ import annotations

from tests.support.zoo import (
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
from tests.support.zoo.base import Job, Plant, line_of

PLANTS: tuple[Plant, ...] = (
    *mlp.PLANTS,
    *attention.PLANTS,
    *norms.PLANTS,
    *conv.PLANTS,
    *rnn.PLANTS,
    *graph.PLANTS,
    *moe.PLANTS,
    *vae.PLANTS,
    *detector.PLANTS,
    *recommender.PLANTS,
)
HEALTHY = healthy.HEALTHY

__all__ = ["HEALTHY", "PLANTS", "Job", "Plant", "line_of"]
