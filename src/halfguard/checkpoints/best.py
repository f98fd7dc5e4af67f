"""``BestKeeper``: keep the checkpoint with the best value of a metric, if all its values are finite."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from halfguard.checkpoints.collecting import collect_state
from halfguard.checkpoints.saving import write_state
from halfguard.dist.collectives import broadcast_object, world_size
from halfguard.errors import RecordError, UsageError

logger = logging.getLogger("halfguard")

_ENTRY = "best"


class BestKeeper:
    """Saves a state to ``path`` whenever ``metric`` reaches a new best value.

    ``mode`` is ``"min"`` if lower is better, as for perplexity, and ``"max"`` if higher is better. The file
    contains the best value under ``"best"``, so a resumed run compares with the best value of the earlier
    run. ``dtype`` and ``allow_infinite`` are the same as for ``save_checkpoint``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metric: str,
        mode: Literal["min", "max"],
        *,
        dtype: torch.dtype | None = None,
        allow_infinite: Iterable[str] = (),
    ) -> None:
        if mode not in ("min", "max"):
            raise UsageError(
                f"mode={mode!r} is not allowed.", cure='Use "min" if lower is better, else "max".'
            )
        self._path, self._metric, self._mode = Path(path), metric, mode
        self._dtype, self._allow_infinite = dtype, tuple(allow_infinite)
        self._value = self._read_value() if self._path.exists() else None

    @property
    def value(self) -> float | None:
        """The best value so far, or None if nothing has been saved yet."""
        return self._value

    def update(self, state: Mapping[str, Any], value: float | torch.Tensor) -> bool:
        """Save ``state`` if ``value`` is better than all earlier values, and return whether it was saved.

        ``state`` is a mapping as for ``save_checkpoint``. A value that is NaN or Inf is never the best. If
        the value is better but the state contains NaN or Inf, a ``PoisonedStateError`` is raised and the
        earlier file is kept.

        With several ranks, pass the same value on every rank. The value of rank 0 decides whether the file
        is saved.
        """
        if not isinstance(state, Mapping) or _ENTRY in state:
            raise UsageError(
                f"The state must be a mapping without the key {_ENTRY!r}, under which the value is stored.",
                cure='Pass {"model": model}.',
            )
        number = float(value)
        if not math.isfinite(number):
            logger.warning("%s is %s, so %s is not replaced", self._metric, number, self._path)
        wins = self._is_better(number)
        if not wins and world_size() == 1:
            return False
        entry = {"metric": self._metric, "mode": self._mode, "value": number}
        collected = collect_state({**state, _ENTRY: entry})
        if collected.sharded_over is not None:
            wins = broadcast_object(0, wins, collected.sharded_over)
        if wins:
            write_state(
                self._path, collected, dtype=self._dtype, allow_infinite=self._allow_infinite
            )
            self._value = number
        return wins

    def _is_better(self, number: float) -> bool:
        if not math.isfinite(number):
            return False
        if self._value is None:
            return True
        return number < self._value if self._mode == "min" else number > self._value

    def _read_value(self) -> float:
        try:
            saved = torch.load(self._path, map_location="meta", weights_only=True)
        except Exception as error:
            raise RecordError(
                f"{self._path} exists but cannot be read: {str(error).splitlines()[0]}",
                cure="Move the file, or choose another path.",
            ) from error
        entry = saved.get(_ENTRY) if isinstance(saved, dict) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("value"), float):
            raise UsageError(
                f"{self._path} exists, but BestKeeper did not write it: it contains no metric value.",
                cure="Choose another path, or move the file.",
            )
        kept_by = (entry.get("metric"), entry.get("mode"))
        if kept_by != (self._metric, self._mode):
            raise UsageError(
                f"{self._path} contains the best model by {kept_by[0]} ({kept_by[1]}), not by "
                f"{self._metric} ({self._mode}).",
                cure="Use the same metric and mode, or choose another path.",
            )
        best: float = entry["value"]
        return best
