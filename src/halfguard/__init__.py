"""halfguard: train in 16-bit precision, and prove that the result is as good as in FP32.

This module contains only the public names. A name is imported when it is first used, so ``import halfguard``
is fast and works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfguard import formats, ops
    from halfguard.checkpoints import BestKeeper, save_checkpoint
    from halfguard.diagnosis.doctor import doctor
    from halfguard.guard.config import GuardConfig
    from halfguard.guard.guard import Guard
    from halfguard.guard.guard_scaler import GuardScaler
    from halfguard.guard.hosted import HostedGuard
    from halfguard.guard.stepping.outcome import StepOutcome
    from halfguard.guard.stepping.scaler import GradScaler
    from halfguard.precision.emulation import emulate_autocast
    from halfguard.precision.islands import fp32_island
    from halfguard.precision.master_weights import MasterWeights
    from halfguard.precision.upcast import half_state_dict, upcast_trainable
    from halfguard.probing.plan_search import plan
    from halfguard.probing.probe import probe
    from halfguard.records.plan import PrecisionPlan
    from halfguard.replaying.autopsy import replay
    from halfguard.tracing.audit import audit
    from halfguard.tracing.first_nonfinite import find_first_nonfinite
    from halfguard.tracing.tracer import trace
    from halfguard.trials.plans import apply_plan
    from halfguard.validation.validate import validate
    from halfguard.workload import Workload
    from halfguard.workload.rounding import rounding

__version__ = "0.2.0"

# name -> (module, attribute or None for the module itself, the extra it needs or None)
_NAMES: dict[str, tuple[str, str | None, str | None]] = {
    "BestKeeper": ("halfguard.checkpoints", "BestKeeper", "torch"),
    "GradScaler": ("halfguard.guard.stepping.scaler", "GradScaler", "torch"),
    "Guard": ("halfguard.guard.guard", "Guard", "torch"),
    "GuardConfig": ("halfguard.guard.config", "GuardConfig", "torch"),
    "GuardScaler": ("halfguard.guard.guard_scaler", "GuardScaler", "torch"),
    "HostedGuard": ("halfguard.guard.hosted", "HostedGuard", "torch"),
    "MasterWeights": ("halfguard.precision.master_weights", "MasterWeights", "torch"),
    "PrecisionPlan": ("halfguard.records.plan", "PrecisionPlan", None),
    "StepOutcome": ("halfguard.guard.stepping.outcome", "StepOutcome", "torch"),
    "Workload": ("halfguard.workload", "Workload", "torch"),
    "apply_plan": ("halfguard.trials.plans", "apply_plan", "torch"),
    "audit": ("halfguard.tracing.audit", "audit", "torch"),
    "doctor": ("halfguard.diagnosis.doctor", "doctor", "torch"),
    "emulate_autocast": ("halfguard.precision.emulation", "emulate_autocast", "torch"),
    "find_first_nonfinite": ("halfguard.tracing.first_nonfinite", "find_first_nonfinite", "torch"),
    "formats": ("halfguard.formats", None, None),
    "fp32_island": ("halfguard.precision.islands", "fp32_island", "torch"),
    "half_state_dict": ("halfguard.precision.upcast", "half_state_dict", "torch"),
    "ops": ("halfguard.ops", None, "torch"),
    "plan": ("halfguard.probing.plan_search", "plan", "torch"),
    "probe": ("halfguard.probing.probe", "probe", "torch"),
    "replay": ("halfguard.replaying.autopsy", "replay", "torch"),
    "rounding": ("halfguard.workload.rounding", "rounding", "torch"),
    "save_checkpoint": ("halfguard.checkpoints", "save_checkpoint", "torch"),
    "trace": ("halfguard.tracing.tracer", "trace", "torch"),
    "upcast_trainable": ("halfguard.precision.upcast", "upcast_trainable", "torch"),
    "validate": ("halfguard.validation.validate", "validate", "validate"),
}

__all__ = [
    "BestKeeper",
    "GradScaler",
    "Guard",
    "GuardConfig",
    "GuardScaler",
    "HostedGuard",
    "MasterWeights",
    "PrecisionPlan",
    "StepOutcome",
    "Workload",
    "__version__",
    "apply_plan",
    "audit",
    "doctor",
    "emulate_autocast",
    "find_first_nonfinite",
    "formats",
    "fp32_island",
    "half_state_dict",
    "ops",
    "plan",
    "probe",
    "replay",
    "rounding",
    "save_checkpoint",
    "trace",
    "upcast_trainable",
    "validate",
]


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'halfguard' has no attribute {name!r}")
    module, attribute, extra = _NAMES[name]
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").split(".")[0] == "halfguard":
            raise
        from halfguard.errors import MissingExtraError  # noqa: PLC0415

        raise MissingExtraError(f"halfguard.{name}", extra) from error
    if attribute is not None:
        found = getattr(found, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
