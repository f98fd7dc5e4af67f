"""A run without a bad number that ends worse than in FP32: by what it prints, with several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation.cures import keep_each
from halfguard.investigation.printed_numbers import is_beyond_noise, numbers, worse_numbers
from halfguard.investigation.worse_than_fp32 import Shortfall
from tests.investigation.command import ask_about

# The variance of large counts overflows in a checkpoint that is saved in half, after the last step.
DEPLOYED_IN_HALF = """
import torch
from torch import nn
torch.manual_seed(0)
def make():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
def batch():
    y = torch.randint(0, 2, (64,))
    return (torch.randn(64, 4) + 3 * y[:, None]) * 2000, y
net = make()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(60):
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = net.state_dict().items()
saved = {name: value.half() if value.is_floating_point() else value for name, value in state}
deployed = make().eval()
deployed.load_state_dict(saved)
x, y = batch()
print(f"deployed accuracy {(deployed(x).argmax(1) == y).float().mean():.3f}")
"""

TOO_FAST = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
optimizer = torch.optim.Adam(net.parameters(), lr=5.0)
for step in range(12):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    loss = (out.float() - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "told", "line"),
    [
        # A fault after the last step is found by what the script prints.
        (DEPLOYED_IN_HALF, "deployed accuracy", "+saved = {name: value.float()"),
        (TOO_FAST, "learning rate of 5 is too high", "lr=0.5"),
    ],
)
def test_a_run_that_ends_badly_without_a_bad_number(
    tmp_path: Path, script: str, told: str, line: str
) -> None:
    answer = ask_about(script, tmp_path)
    assert answer.outcome == "trains wrongly"
    assert answer.cure is not None
    assert told in answer.cure.sentence
    assert line in answer.cure.patch


def test_numbers_are_named_by_all_words_before_them() -> None:
    found = numbers("val_acc deployed 0.35\nepoch 3 loss=0.5 | acc: 93.5% lr 1e-3 took 12.5s, 3/10")
    assert found == {"val_acc deployed": [0.35], "loss": [0.5], "acc": [93.5]}


@pytest.mark.parametrize(
    ("now", "full", "worse"),
    [
        ("acc 0.90", "acc 0.95", True),
        ("acc 0.95", "acc 0.90", False),
        ("mse 0.30", "mse 0.20", True),
        ("mse 0.21", "mse 0.20", False),
        ("mse 0.003", "mse 1.0\nmse 0.001", False),  # both have come down
        ("count 2048", "count 3000", True),
        ("entropy 0.002", "entropy 0.69\nentropy 0.001", False),
        ("loss nan", "loss 0.5", True),
        ("skipped 3", "skipped 0", False),
    ],
)
def test_what_is_worse(now: str, full: str, worse: bool) -> None:
    assert bool(worse_numbers(now, full)) is worse


@pytest.mark.parametrize(
    ("now", "full", "beyond"),
    [
        ([0.148, 0.090, 0.245], [0.053, 0.035, 0.097], True),  # seeds matter, the precision more
        ([0.148, 0.090, 0.097], [0.053, 0.085, 0.245], False),
        ([0.148, 0.090], [0.053, float("nan")], False),
        ([0.148, float("inf")], [0.053, 0.06], True),
    ],
)
def test_what_seeds_explain_is_noise(now: list[float], full: list[float], beyond: bool) -> None:
    assert is_beyond_noise("val_mae", now, full) is beyond


def test_a_patch_has_to_bring_back_what_was_lost() -> None:
    lost = Shortfall({"acc": (0.5, 0.9)}, 3)
    assert lost.left("acc 0.6", "acc 0.9")
    assert not lost.left("acc 0.88", "acc 0.9")


def test_each_region_of_autocast_is_tried(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    region = 'with torch.autocast("cpu", dtype=torch.bfloat16):\n    {}\n'
    script.write_text("import torch\n" + region.format("train()") + region.format("validate()"))
    cures = list(keep_each((), str(script), "It is worse.", "HG619"))
    assert [cure.patch.count("enabled=False") for cure in cures] == [1, 1]
    assert f"{script}:4" in cures[1].sentence
