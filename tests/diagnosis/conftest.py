"""What frameworks leave behind in a process is put back after the test that used them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def framework() -> Iterator[None]:
    """Generators, environment and Accelerate's global state as they were."""
    from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]

    environment, drawn, python = dict(os.environ), torch.get_rng_state(), random.getstate()
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_rng_state(drawn)
    random.setstate(python)
