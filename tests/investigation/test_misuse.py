"""Calls that train wrongly without a bad number, in scripts that run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.records.script_answer import ScriptAnswer
from tests.investigation.command import SCRIPTS, ask, ask_about

pytestmark = pytest.mark.slow


def test_clipping_of_scaled_gradients_and_a_schedule_that_runs_ahead_are_told(
    tmp_path: Path,
) -> None:
    answer = ask("clips_scaled.py", tmp_path)
    assert answer.outcome == "trains wrongly"
    assert "clips_scaled.py:15: torch.nn.utils.clip_grad_norm_" in answer.cure.sentence
    assert "+    scaler.unscale_(optimizer)" in answer.cure.patch
    assert "clips_scaled.py:18: schedule.step()" in answer.advice


def test_a_loop_that_uses_its_scaler_rightly_gets_no_advice(tmp_path: Path) -> None:
    right = (SCRIPTS / "clips_scaled.py").read_text("utf-8").replace("2.0**30", "2.0**10")
    clip = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    named = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
    named += "    torch.nn.utils.clip_grad_value_(parameters=model.parameters(), clip_value=1.0)"
    right = right.replace(clip, f"    scaler.unscale_(optimizer)\n{named}")
    right += "assert not torch.isnan(input=loss)\n"
    answer = ask_about(right, tmp_path)
    assert answer.outcome == "nothing bad"
    assert answer.advice == ""


def test_ranks_that_the_script_starts_are_told_not_to_be_seen(tmp_path: Path) -> None:
    answer = ask("spawns_ranks.py", tmp_path)
    assert answer.outcome == "no training"
    assert any("torchrun" in note for note in answer.notes)


def test_clipping_of_another_network_without_a_scaler_is_not_blamed(tmp_path: Path) -> None:
    two = (SCRIPTS / "clips_scaled.py").read_text("utf-8").replace("2.0**30", "2.0**10")
    plain = "critic = nn.Linear(8, 1); critic(x).mean().backward()\n    torch.nn.utils.clip_grad_norm_(critic"
    two = two.replace("torch.nn.utils.clip_grad_norm_(model", plain)
    answer = ask_about(two, tmp_path)
    assert answer.outcome == "nothing bad"
    assert "clipped" not in answer.advice


LOOP = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
other = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(12):
    x = torch.randn(16, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (net(x) - x[:, :1].detach()).square().mean()
    grad = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)[0] / scaler.get_scale()
    total = loss + 0.01 * grad.float().square().sum()
    opt.zero_grad()
    scaler.scale(total).backward()
    scaler.step(opt)
    scaler.update()
"""
PENALTY = LOOP[LOOP.index("    grad = ") : LOOP.index("    scaler.step")]
CHANGES = {
    "not scaled": (  # without the penalty: a script that reads the scale may scale by hand
        PENALTY,
        (
            "    scaler.scale(loss).backward(retain_graph=True)\n    opt.zero_grad()\n"
            "    loss.backward()\n"
        ),
    ),
    "other scaler": ("scaler.scale(total)", "other.scale(total)"),
    "penalty": (" / scaler.get_scale()", ""),
    "not zeroed": ("    opt.zero_grad()\n", ""),
    "hidden": (
        "    scaler.step(opt)\n    scaler.update()\n",
        (
            "    try:\n        scaler.unscale_(opt)\n        scaler.unscale_(opt)\n"
            "        scaler.step(opt)\n        scaler.update()\n    except RuntimeError:\n        pass\n"
        ),
    ),
    "off": ('scaler = torch.amp.GradScaler("cpu"', 'scaler = torch.amp.GradScaler("cuda"'),
}
TOLD = {
    "not scaled": "was not multiplied",
    "other scaler": "unscaled by another",
    "penalty": "Divide them by scaler.get_scale()",
    "not zeroed": "zero_grad() in every step",
    "hidden": "raised",
    "off": "it is disabled",
}


def ask_loop(folder: Path, old: str, new: str) -> ScriptAnswer:
    """Ask about the loop after a change."""
    assert old in LOOP
    return ask_about(LOOP.replace(old, new), folder)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_wrong_use_of_the_scaler_is_told_with_a_patch_that_was_run(
    tmp_path: Path, kind: str
) -> None:
    answer = ask_loop(tmp_path, *CHANGES[kind])
    assert answer.cure is not None, answer.advice
    assert TOLD[kind] in answer.cure.sentence
    assert answer.cure.patch.startswith("--- ")
    assert answer.trials[-1].good


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step", "step"),  # nothing is changed
        ("scaler.scale(total).backward()", "(scaler.scale(total) / 2).backward()"),
        ("scaler.scale(total).backward()", "sum(scaler.scale([total, total])).backward()"),
        ("    opt.zero_grad()\n", "    for p in net.parameters():\n        p.grad = None\n"),
        ('"cpu", init_scale=1024.0', '"cpu", enabled=False'),  # as scripts with an option have it
    ],
)
def test_a_right_use_of_the_scaler_is_not_told(tmp_path: Path, old: str, new: str) -> None:
    answer = ask_loop(tmp_path, old, new)
    assert answer.outcome == "nothing bad"
    assert answer.advice == ""
    assert answer.cure is None


CAUGHT = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(24):
    x = torch.randn(16, 8)
    opt.zero_grad()
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            y = net(x).masked_fill(x[:, :4] > 2, VALUE)
        loss = nn.functional.cross_entropy(y.float(), x[:, :4].argmax(-1))
        loss.backward()
        opt.step()
    except RuntimeError:
        pass
    for text in ("1", "one"):
        try:
            int(text)
        except ValueError:
            continue
"""


@pytest.mark.parametrize(("value", "is_caught"), [("-1e9", True), ("-1e4", False)])
def test_an_error_that_the_script_catches_in_every_step_is_told(
    tmp_path: Path, value: str, is_caught: bool
) -> None:
    answer = ask_about(CAUGHT.replace("VALUE", value), tmp_path)
    assert answer.outcome == ("trains wrongly" if is_caught else "nothing bad")
    if is_caught:
        assert (answer.code, answer.backward) == ("HG101", 0)
        assert "24 times and did not train" in answer.cure.sentence
        assert "train.py:13: y = net(x)" in answer.cure.sentence
        assert "+            y = net(x).masked_fill(x[:, :4] > 2, torch.finfo(" in answer.cure.patch
