"""The sensors on torch, in a process of their own.

What other libraries read of torch, such as names of arguments, stays as it was. A step is not blamed for an
optimizer that is gone, whose identity the new one may have.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.support.forks import forked_python

pytestmark = pytest.mark.slow

PROGRAM = """
import inspect
from halfguard.investigation.bus import HookBus
from torch.optim import Optimizer
from torch.utils.data import DataLoader

def names(kind):
    return list(inspect.signature(kind.__init__).parameters)

before = names(DataLoader), names(Optimizer)
HookBus().install()
assert (names(DataLoader), names(Optimizer)) == before, (names(DataLoader), before)
loader = DataLoader([1, 2], 2)
assert next(iter(loader)).tolist() == [1, 2]
"""

GONE = """
import torch
from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import WrongGradients
from halfguard.investigation.passes import Made

loop = HookBus()
loop.install()
gradients = WrongGradients(loop)
loop.listen(gradients)
scaler, known = torch.amp.GradScaler("cpu"), set()
weight = torch.nn.Parameter(torch.ones(1))
for _ in range(8):
    scaled = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    scaler.step(scaled)
    scaler.update()
    known.add(id(scaled))
    del scaled
    plain = torch.optim.SGD([weight], lr=0.1)
    plain.step()  # of gradients that are not scaled any more
    reused = id(plain) in known
    assert not list(gradients.found(Made(), '')), reused
    del plain
assert reused
"""


@pytest.mark.parametrize("program", [PROGRAM, GONE], ids=["arguments", "gone"])
def test_a_program_under_the_sensors(program: str) -> None:
    done = subprocess.run([forked_python(), "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
