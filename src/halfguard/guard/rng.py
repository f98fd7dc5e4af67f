"""The state of every random generator that a step may draw from, to repeat the step exactly."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states of torch (host and accelerator), Python and, where it is in use, NumPy."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.accelerator.is_available():
        states["accelerator"] = _accelerator().get_rng_state()
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = [name, keys.tolist(), *rest]
    return states


def restore(states: dict[str, Any]) -> None:
    """Put every generator back to where it was."""
    torch.set_rng_state(states["torch"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    if "accelerator" in states:
        _accelerator().set_rng_state(states["accelerator"])
    if "numpy" in states:
        import numpy as np  # noqa: PLC0415

        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def _accelerator() -> Any:
    device = torch.accelerator.current_accelerator()
    return torch.get_device_module(device)
