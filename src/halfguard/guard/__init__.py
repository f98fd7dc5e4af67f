"""The decision at every step: config, policy (pure), scaler, guard, recovery."""

from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.guard.outcome import StepOutcome
from halfguard.guard.scaler import GradScaler

__all__ = ["GradScaler", "Guard", "GuardConfig", "StepOutcome"]
