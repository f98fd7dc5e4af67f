"""Whole scripts that lose numbers without a bad one: each fault is one change of a loop that is healthy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from halfguard.investigation.proof import PROOF
from halfguard.records.script_answer import ScriptAnswer
from tests.investigation.command import answer_of, ask_about

pytestmark = pytest.mark.slow

# Tiny gradients with a scaler, a mask with -inf, positions and a square in FP32.
SCALED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1).half())

    def forward(self, x):
        h = self.inner(x)
        weights = (h.half() @ h.half().transpose(1, 2) + self.mask).softmax(-1)
        at = torch.arange(6000, 6064).float()
        h = (weights @ h) * torch.cos(at / 100).mean()
        far = 3000 * h.float()
        near = far / (far * far).mean(-1, keepdim=True).sqrt()
        return self.head(h + near)


torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
for step in range(12):
    x = torch.randn(16, 4, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e-7 * net(x).float().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""
# BF16 weights whose updates are large enough, and a sum that fits.
HALF = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x):
        self.total += x.detach().abs().mean()
        return self.inner(x)


torch.manual_seed(0)
net = Net().bfloat16()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(16, 8).bfloat16()
    loss = net(x).float().square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
WITHOUT_SCALER = (
    ('scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)\n', ""),
    ("scaler.scale(loss).backward()", "loss.backward()"),
    ("    scaler.unscale_(opt)\n", ""),
    ("scaler.step(opt)\n    scaler.update()", "opt.step()"),
)
IN_HALF = (("far = 3000 * h.float()", "far = 3000 * h.half()"), ("h + near", "h + near.float()"))
# Where it is infinite in half it is almost 0 in FP32.
HARMLESS = (("far / (far * far).mean(-1, keepdim=True).sqrt()", "1 / (1 + far * far)"),)
Changes = tuple[tuple[str, str], ...]
# what is changed, what is told, and lines that the patch adds
FAULTS: dict[str, tuple[str, Changes, str, tuple[str, ...]]] = {
    "no scaler": (
        SCALED,
        WITHOUT_SCALER,
        "Autocast runs in float16 without a loss scale",
        (
            "+    scaler.scale(loss).backward()",
            "+    scaler.unscale_(opt)",
            "+    scaler.step(opt)",
            "+    scaler.update()",
        ),
    ),
    "swallowed": (
        SCALED,
        IN_HALF,
        "near = far / (far * far).mean(-1, keepdim=True).sqrt()",
        ("+        near = far.float() / (far.float() * far.float()).mean(",),
    ),
    "rounded integers": (
        SCALED,
        (("torch.arange(6000, 6064).float()", "torch.arange(6000, 6064).to(h.dtype)"),),
        "Positions are cast to float16",
        ("+        at = torch.arange(6000, 6064).float()",),
    ),
    "lost updates": (
        HALF,
        (("lr=0.1", "lr=1e-6"),),
        "of the updates of 16-bit weights are lost in each step",
        ("+net = Net()", "dtype=torch.bfloat16)(net.forward)"),
    ),
    "bad buffer": (
        HALF,
        (("bfloat16()", "half()"), ("abs().mean()", "abs().sum() * 100")),
        "total of Net is 16-bit and holds NaN or Inf",
        ("+net = Net()",),
    ),
}


def ask_changed(folder: Path, text: str, changes: Changes) -> ScriptAnswer:
    """Ask about a script after some changes."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return ask_about(text, folder)


@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_lost_is_told_with_a_patch_after_which_it_is_not(tmp_path: Path, kind: str) -> None:
    text, changes, told, lines = FAULTS[kind]
    answer = ask_changed(tmp_path, text, changes)
    assert answer.outcome == "trains wrongly"
    assert answer.cure is not None, answer.advice
    assert answer.cure.trial == PROOF
    assert told in answer.cure.sentence
    for line in lines:
        assert line in answer.cure.patch
    (tmp_path / "change.diff").write_text(answer.cure.patch + "\n")
    subprocess.run(["patch", "-p1", "-i", "change.diff"], cwd=tmp_path, check=True)
    after = answer_of("train.py", cwd=tmp_path)
    assert (after.outcome, after.cure, after.advice) == ("nothing bad", None, "")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (SCALED, ()),
        (SCALED, (*IN_HALF, *HARMLESS)),
        (SCALED, (*WITHOUT_SCALER, ("torch.float16", "torch.bfloat16"))),
        (SCALED, (*WITHOUT_SCALER, ("1e-7 * net(x)", "net(x)"))),
        (HALF, ()),
        (HALF, (("bfloat16()", "half()"),)),
    ],
)
def test_a_loop_that_loses_nothing_is_left_alone(
    tmp_path: Path, text: str, changes: Changes
) -> None:
    answer = ask_changed(tmp_path, text, changes)
    assert answer.outcome == "nothing bad"
    assert (answer.cure, answer.advice, answer.swallowed) == (None, "", ())
