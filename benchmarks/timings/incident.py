"""Compare writing an incident with safetensors writing the same bytes, both with fsync and both without.

An incident calls fsync before it gets its name; safetensors does not. One with fsync beside one without would
measure the disk.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.table import print_table
from halfguard.incident.capture import BadStep, IncidentWriter
from halfguard.records import Action, Cause, StepRow
from halfguard.step.random_state import capture_random_state

ROUNDS, WIDTH, LAYERS = 21, 1024, 16  # 64 MiB of weights
BATCH = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))


def bad_step() -> BadStep:
    step = StepRow(
        step=7, action=Action.SKIP, cause=Cause.BAD_BATCH, loss=1.0, grad_norm=1.0, scale=1.0
    )
    return BadStep(step, [(BATCH, capture_random_state(), None)], {}, "fp16-mixed", "cpu")


def capture(incidents: IncidentWriter, folder: Path, model: nn.Module) -> None:
    """Do all that a guard does for a bad step: gather the state, encode it, write it."""
    incidents.folder = folder
    assert incidents.capture(model, bad_step()) is not None, incidents.why_missed


def alone(folder: Path, tensors: dict[str, Tensor], *, wait: bool) -> None:
    folder.mkdir()
    save_file(tensors, folder / "tensors.safetensors")
    if wait:
        with (folder / "tensors.safetensors").open("rb") as file:
            os.fsync(file.fileno())


def measured(contestants: dict[str, Callable[[Path], None]]) -> dict[str, list[float]]:
    """Return seconds of interleaved rounds, each in a new folder; removing it is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS + 1):
        for name, run in contestants.items():
            place = Path(tempfile.mkdtemp())
            gc.collect()
            start = time.perf_counter()
            run(place / "incident")
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(place)
    return seconds


def make_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=__doc__)


def main() -> None:
    make_parser().parse_args()
    logging.disable()
    incidents = IncidentWriter(Path(), keep=10**6, max_bytes=2**40, weights=True, environment={})
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    same = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    same |= {"batch.0": BATCH, "random_state.0.torch": torch.get_rng_state()}
    size = sum(t.numel() * t.element_size() for t in same.values()) / 2**20
    waiting = measured(
        {
            "save_file, fsync": lambda folder: alone(folder, same, wait=True),
            "incident": lambda folder: capture(incidents, folder, model),
        }
    )
    print_table(f"{size:.0f} MiB, with fsync", waiting, against="save_file, fsync")
    with mock.patch("os.fsync"):
        free = measured(
            {
                "save_file": lambda folder: alone(folder, same, wait=False),
                "incident without fsync": lambda folder: capture(incidents, folder, model),
            }
        )
    print_table(f"{size:.0f} MiB, without fsync", free, against="save_file")


if __name__ == "__main__":
    main()
