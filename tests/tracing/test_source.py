"""The line of the user, also in a torch without the private function that starts a backward pass."""

from __future__ import annotations

import sys

import pytest

from tests.support.programs import captured

pytestmark = pytest.mark.slow

WITHOUT_THE_PRIVATE_NAME = """
import torch
from torch import nn

del torch.autograd.graph._engine_run_backward

import halfguard as hg

model, x = nn.Linear(2, 1), torch.ones(1, 2)
guard = hg.Guard(model, torch.optim.SGD(model.parameters(), 0.1), {"precision": "fp32"})
print(guard.step(lambda model, x: model(x).sum(), x).applied)

def loss():
    y = model(x)
    y.register_hook(lambda grad: grad / 0)  # the line of a hook, which runs in the backward pass
    return y.sum()

culprit = hg.find_first_nonfinite(loss, model)
print(culprit.phase, culprit.line)

culprit = hg.find_first_nonfinite(lambda: (model(x) * 0).sqrt().sum(), model)
print(culprit.phase, culprit.line)
"""


def test_a_torch_without_the_private_function_that_starts_a_backward_pass() -> None:
    ran = captured(sys.executable, "-c", WITHOUT_THE_PRIVATE_NAME)
    assert ran.stdout.splitlines() == ["True", "backward 15", "backward 21"], ran.stderr
