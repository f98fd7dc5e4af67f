"""The same random numbers for every run, and the caller's generators as they were afterwards."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy (if it is in use) and torch on every device for the block."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            random.seed(seed)
            torch.manual_seed(seed)
            if numpy:
                numpy.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
