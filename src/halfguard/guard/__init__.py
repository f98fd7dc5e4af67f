"""Guard a training run: decide at every step, on the device, whether the update may be applied.

Names are imported on first use: presets are text, and can be read where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfguard.guard.config import GuardConfig
    from halfguard.guard.guard import Guard
    from halfguard.guard.stepping.outcome import StepOutcome
    from halfguard.guard.stepping.scaler import GradScaler

__all__ = ["GradScaler", "Guard", "GuardConfig", "StepOutcome"]

_MODULES = {
    "GradScaler": "stepping.scaler",
    "Guard": "guard",
    "GuardConfig": "config",
    "StepOutcome": "stepping.outcome",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
