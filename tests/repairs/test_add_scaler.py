"""A scaler is added to a loop without one, as one would write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.repairs.add_scaler import Region, add_scaler
from tests.repairs.patched_script import at, patched, write

NO_SCALER = """
import torch
opt = torch.optim.SGD(p)
for x in data:
    with torch.autocast(device_type=device.type, dtype=torch.float16):
        loss = f(x)
    (loss / 2).backward()
    if last:
        torch.nn.utils.clip_grad_norm_(p, 1.0)
        opt.step()
        opt.zero_grad()
    sched.step()
"""


def mend_without_scaler(script: Path, text: str) -> str:
    """Return the script after a scaler was added."""
    write(script, text)
    autocast = at(script, "autocast")
    made = Region(optimizer=at(script, "SGD"), autocast=autocast, device="cpu")
    patch = add_scaler(at(script, "backward"), made, 1024.0)
    return patched(script, patch) if patch else ""


def test_a_scaler_that_is_added_unscales_before_gradients_are_clipped(script: Path) -> None:
    text = mend_without_scaler(script, NO_SCALER)
    assert "scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)\n" in text
    assert "    (scaler.scale(loss / 2)).backward()\n" in text
    clip = "        torch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert f"    if last:\n        scaler.unscale_(opt)\n{clip}" in text
    assert "        scaler.step(opt)\n        scaler.update()\n        opt.zero_grad()\n" in text
    assert text.endswith("    sched.step()\n")


def test_a_scaler_that_is_added_has_a_name_of_its_own(script: Path) -> None:
    other = NO_SCALER.replace("import torch\n", "import torch\nscaler = StandardScaler()\n")
    text = mend_without_scaler(script, other)
    assert "scaler = StandardScaler()\n" in text
    assert "grad_scaler = torch.amp.GradScaler(" in text
    assert "        grad_scaler.unscale_(opt)\n" in text
    assert "        grad_scaler.step(opt)\n        grad_scaler.update()\n" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    sched.step()\n", "    other_opt.step()\n"),  # two optimizers
        ("opt.step()", "opt.step(closure)"),
        ("(loss / 2).backward()", "engine.backward(loss); (loss / 2).backward()"),
    ],
)
def test_no_scaler_is_added_to_a_loop_that_is_not_known(script: Path, old: str, new: str) -> None:
    assert not mend_without_scaler(script, NO_SCALER.replace(old, new))


TRAINER = """
import torch

class Trainer:
    def __init__(self, device):
        self.opt = torch.optim.SGD(p)

    def fit(self):
        for epoch in range(9):
            for x in data:
                with torch.autocast(self.device, dtype=torch.float16):
                    loss = f(x)
                loss.backward()
                self.opt.step()
"""


def test_a_scaler_is_made_before_the_loop_if_the_optimizer_is_made_elsewhere(script: Path) -> None:
    text = mend_without_scaler(script, TRAINER)
    made = "        scaler = torch.amp.GradScaler(self.device, init_scale=1024.0)\n"
    assert f"    def fit(self):\n{made}        for epoch in range(9):\n" in text
    assert "                scaler.scale(loss).backward()\n" in text
    margin = " " * 16
    assert text.endswith(f"{margin}scaler.step(self.opt)\n{margin}scaler.update()\n")


def test_a_step_without_a_loop_around_it_gets_no_scaler(script: Path) -> None:
    loop = "        for epoch in range(9):\n            for x in data:\n"
    once = TRAINER.replace(loop, "        if True:\n            if True:\n")
    assert not mend_without_scaler(script, once)


def test_a_device_that_is_not_known_where_the_scaler_is_made_is_written_out(script: Path) -> None:
    local = NO_SCALER.replace("for x in data:", "def train(device):\n  for x in data:")
    text = mend_without_scaler(script, local)
    assert 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)\n' in text
