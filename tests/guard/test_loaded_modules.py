"""A guard loads what it uses: the optional parts are imported when a configuration switches them on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIMIT = 70  # modules of ours

STEPS = """
import json, sys
import halfguard

def loaded():
    return sorted(name for name in sys.modules if name.split(".")[0] == "halfguard")

halfguard.Guard
imported = loaded()

import torch

def step(config="default", **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = halfguard.Guard(model, optimizer, config, **options)
    assert guard.step(lambda model, x: model(x).float().sum() / 1000, torch.ones(1, 2)).applied
    guard.close()

step()
stepped = loaded()
step({"watch": {}, "heal": {}, "recovery": {}})
print(json.dumps([imported, stepped, loaded()]))
"""


@pytest.mark.slow
def test_a_default_guard_loads_few_modules() -> None:
    ran = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    imported, stepped, everything = json.loads(ran.stdout)
    assert len(imported) <= LIMIT, imported
    assert len(stepped) <= LIMIT, stepped
    optional = {
        f"halfguard.{name}" for name in ("guard.healing", "guard.recovery", "guard.watching")
    }
    optional |= {"halfguard.tracing", "halfguard.incident", "halfguard.hardware"}
    assert not optional & set(stepped)
    assert optional - {"halfguard.incident", "halfguard.hardware"} <= set(everything)
