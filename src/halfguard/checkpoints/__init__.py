"""Checkpoints that are whole and finite, or not written at all."""

from __future__ import annotations

from halfguard.checkpoints.best import BestKeeper
from halfguard.checkpoints.saving import save_checkpoint

__all__ = ["BestKeeper", "save_checkpoint"]
