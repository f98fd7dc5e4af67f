"""The device's autocast has the lists that halfguard has for CUDA; on a CPU they are emulated."""

from __future__ import annotations

import pytest
import torch

from tests.precision.test_emulation import (  # noqa: F401
    same_random_numbers,
    test_is_banned,
    test_runs_in_float16,
    test_runs_in_float32,
    test_runs_in_the_widest,
    test_the_rules_are_those_that_this_torch_registers_for_cuda,
)


@pytest.fixture(autouse=True)
def has_the_lists_of_cuda(device: torch.device) -> None:
    if device.type not in ("cpu", "cuda", "standin"):
        pytest.skip(f"{device.type} has autocast lists of its own")
