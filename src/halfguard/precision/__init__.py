"""Run a model in 16 bits: autocast modes, FP32 master weights, half checkpoints."""

from __future__ import annotations

from halfguard.precision.emulation import emulate_autocast
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import autocast, full_precision
from halfguard.precision.upcast import half_state_dict, upcast_trainable
from halfguard.precision_names import Precision

__all__ = [
    "MasterWeights",
    "Precision",
    "autocast",
    "emulate_autocast",
    "full_precision",
    "half_state_dict",
    "upcast_trainable",
]
