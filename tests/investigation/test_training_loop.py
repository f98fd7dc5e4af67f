"""The sensors on torch: what other libraries read of it stays as it was."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.forks import forked_python

PROGRAM = """
import inspect
from halfguard.investigation.training_loop import TrainingLoop
from torch.optim import Optimizer
from torch.utils.data import DataLoader

def names(kind):
    return list(inspect.signature(kind.__init__).parameters)

before = names(DataLoader), names(Optimizer)
TrainingLoop().install()
assert (names(DataLoader), names(Optimizer)) == before, (names(DataLoader), before)
loader = DataLoader([1, 2], 2)
assert next(iter(loader)).tolist() == [1, 2]
"""


@pytest.mark.slow
def test_arguments_of_loaders_and_optimizers_keep_their_names() -> None:
    done = subprocess.run([forked_python(), "-c", PROGRAM], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
