"""Material for studies: faults in the way users write PyTorch, runs that drift, and healthy ones.

It was written without knowledge of how the instruments decide. A third of it, chosen by a hash of the name,
is held out: tune on the rest only.
"""

from __future__ import annotations

from benchmarks.models.planted.base import Drift, Fault, Healthy, Periodic, is_held_out
from benchmarks.models.planted.catalogue_healthy import HEALTHY_RUNS
from benchmarks.models.planted.catalogue_layers import LAYER_FAULTS
from benchmarks.models.planted.catalogue_losses import LOSS_FAULTS
from benchmarks.models.planted.catalogue_periodic import PERIODIC
from benchmarks.models.planted.drifting import DRIFTING, STABLE, Drifting

FAULTS: tuple[Fault, ...] = (*LOSS_FAULTS, *LAYER_FAULTS)

__all__ = [
    "DRIFTING",
    "FAULTS",
    "HEALTHY_RUNS",
    "PERIODIC",
    "STABLE",
    "Drift",
    "Drifting",
    "Fault",
    "Healthy",
    "Periodic",
    "is_held_out",
]
