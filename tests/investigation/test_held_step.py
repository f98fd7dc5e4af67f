"""A step that is repeated in place, where a process cannot be copied, and those that cannot be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation.passes import Event, PassResult
from tests.investigation.command import run_one_pass
from tests.support import standin

pytestmark = pytest.mark.slow

THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
device = "cpu"
"""
STANDIN = """
from tests.support import standin
standin.prepare()
standin.load()
device = "standin"
"""
LOOP = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
data = [torch.randn(16, 8) for _ in range(6)]
for step, batch in enumerate(data):
    x = batch.to(device) + 0.1 * torch.randn(16, 8).to(device)
    out = net(x)
    opt.zero_grad()
    large = (out * (300.0 if step == 4 else 1.0)).half()
    loss = (large * large).float().mean()
    loss.backward()
    opt.step()
"""
ITERATOR = "batches = iter(data)\nfor step in range(6):\n"
EVENT = Event(
    kind="loss", backward=4, step=4, how=("the loss was NaN or Inf when its backward pass started")
)


def track(folder: Path, script: str) -> PassResult:
    """Track the bad step of a script in a process of its own, and return its answer."""
    return run_one_pass(script, folder, kind="track", event=EVENT)


@pytest.mark.parametrize("start", [THREAD, STANDIN], ids=["threads", "accelerator"])
def test_trials_are_run_in_place(tmp_path: Path, start: str) -> None:
    if start is STANDIN and standin.prepare() is not None:
        pytest.skip("the stand-in cannot be compiled here")
    found = track(tmp_path, start + LOOP)
    assert found.culprit is not None
    assert found.culprit.code == "loss = (large * large).float().mean()"
    good = {one.plan.kind: one.trial for one in found.trials if one.trial.good}
    assert {"fp32", "statement"} <= set(good)
    assert (good["statement"].error_as_written or 0) < 1e-2
    assert good["statement"].loss == pytest.approx(good["fp32"].loss, rel=1e-2)  # the same dropout
    statement = next(one for one in found.trials if one.plan.kind == "statement")
    assert "large.float()" in statement.patch


def test_a_function_that_only_starts_the_backward_pass_is_not_the_step(tmp_path: Path) -> None:
    function = "def backward(loss):\n    loss.backward()\n\nfor step, batch in"
    script = LOOP.replace("for step, batch in", function).replace(
        "    loss.backward()\n    opt", "    backward(loss)\n    opt"
    )
    found = track(tmp_path, THREAD + script)
    assert {"fp32", "statement"} <= {one.plan.kind for one in found.trials if one.trial.good}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for step, batch in enumerate(data):\n", f"{ITERATOR}    batch = next(batches)\n"),
        ("    opt.zero_grad()\n", "    opt.zero_grad()\n    opt.step()\n"),
    ],
)
def test_what_cannot_be_repeated_is_left_to_other_runs(tmp_path: Path, old: str, new: str) -> None:
    assert old in LOOP
    found = track(tmp_path, THREAD + LOOP.replace(old, new))
    assert found.culprit is not None
    assert found.trials == ()


def test_a_step_inside_of_functions_is_repeated(tmp_path: Path) -> None:
    lines = LOOP.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith("for step"))
    body = "".join(lines[at + 1 :])
    nested = (
        "".join(lines[:at])
        + "class Trainer:\n    scale = 300.0\n\n    def fit(self):\n"
        + "        for step, batch in enumerate(data):\n            self.train(step, batch)\n\n"
        + "    def train(self, step, batch):\n"
        + "".join(f"    {line}\n" for line in body.replace("300.0", "self.scale").splitlines())
        + "\nTrainer().fit()\n"
    )
    found = track(tmp_path, THREAD + nested)
    assert "statement" in {one.plan.kind for one in found.trials if one.trial.good}
