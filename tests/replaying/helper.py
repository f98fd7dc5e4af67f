"""Small incidents for tests of one feature at a time."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from benchmarks.models.zoo.base import noise, seeded
from torch import Tensor, nn

from halfguard.guard.guard import Guard
from halfguard.incident import Incident, open_incident, write_incident
from halfguard.workload import Workload
from tests.support.docs import ROOT

Loss = Callable[[nn.Module, Any], Tensor]


class Square(nn.Module):
    """Squares its input; above 255 the result leaves the range of half."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


def build() -> nn.Module:
    model = seeded(0, lambda: nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(4, 1)))
    nn.init.constant_(model.get_submodule("2").weight, 0.01)  # type: ignore[arg-type]
    return model


def mean(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return out.float().mean()


def job(model: nn.Module | None = None, loss: Loss = mean) -> Workload:
    model = model or build()
    return Workload(model, loss, [noise(0, 6, 4)], torch.optim.SGD(model.parameters(), lr=0.1))


def broken(
    folder: Path,
    batches: list[Any],
    workload: Workload | None = None,
    *,
    entry: str = "",
    config: dict[str, Any] | None = None,
) -> Incident:
    """Run guarded steps on these batches; return the first incident."""
    workload = workload or job()
    config = {"scale": {"init": 64.0}, **(config or {})}
    guard = Guard(workload.model, workload.optimizer, config, run_dir=folder, entry=entry)
    for batch in batches:
        guard.step(workload.loss, batch)
    guard.close()
    return open_incident(min((folder / "incidents").iterdir()))


def edited(incident: Incident, folder: Path, **changes: Any) -> Incident:
    """Return the same incident with a changed record."""
    record = incident.record.model_copy(update=changes)
    tensors = {name: t for name, t in incident.tensors().items() if name in incident.names}
    return open_incident(write_incident(folder / "edited", record, tensors))


class Glitch:
    """A hook that turns one output into NaN, once."""

    def __init__(self) -> None:
        self.fired = False

    def __call__(self, _module: nn.Module, _inputs: Any, output: Tensor) -> Tensor | None:
        if self.fired:
            return None
        self.fired = True
        return output * torch.nan


def glitched(folder: Path, entry: str = "") -> tuple[Incident, Workload]:
    """Return an incident that neither model nor batch explains, and the job with its used hook."""
    workload = job()
    glitch = Glitch()
    workload.model.get_submodule("0").register_forward_hook(glitch)
    incident = broken(folder, [noise(0, 6, 4)], workload, entry=entry)
    glitch.fired = True  # what the hardware did, the guard has put back
    return incident, workload


def overflowing() -> Tensor:
    return noise(0, 6, 4) * 400


def patched_module(patch: str, name: str, work: Path) -> ModuleType:
    """Apply a patch to a copy of the file that it names, and import the copy."""
    file = patch.split("\n", 1)[0].removeprefix("--- a/")
    (work / file).parent.mkdir(parents=True)
    shutil.copy(ROOT / file, work / file)
    subprocess.run(["git", "apply"], input=f"{patch}\n", text=True, cwd=work, check=True)
    spec = importlib.util.spec_from_file_location(name, work / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
