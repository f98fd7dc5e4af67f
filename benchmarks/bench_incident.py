"""Writing an incident against safetensors alone writing the same bytes, with and without fsync.

An incident is brought to the disk before it gets its name; safetensors waits for nothing. So like is compared
with like: both followed by fsync, and both without it.
"""

from __future__ import annotations

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

from benchmarks.timing import print_table
from halfguard.incident.capture import Incidents, Moment
from halfguard.records import Action, Cause, StepRow
from halfguard.step.random_state import capture_random_state

ROUNDS, WIDTH, LAYERS = 21, 1024, 16  # 64 MiB of weights
BATCH = torch.randn(64, WIDTH)


def moment() -> Moment:
    step = StepRow(
        step=7, action=Action.SKIP, cause=Cause.BAD_BATCH, loss=1.0, grad_norm=1.0, scale=1.0
    )
    return Moment(step, [(BATCH, capture_random_state(), None)], {}, "fp16-mixed", "cpu")


def capture(incidents: Incidents, folder: Path, model: nn.Module) -> None:
    """All that a guard does for a bad step: gather the state, encode it, write it."""
    incidents.folder = folder
    assert incidents.capture(model, moment()) is not None, incidents.why_missed


def alone(folder: Path, tensors: dict[str, Tensor], *, wait: bool) -> None:
    folder.mkdir()
    save_file(tensors, folder / "tensors.safetensors")
    if wait:
        with (folder / "tensors.safetensors").open("rb") as file:
            os.fsync(file.fileno())


def measured(contestants: dict[str, Callable[[Path], None]]) -> dict[str, list[float]]:
    """Seconds of interleaved rounds, each in a new folder, which is removed while no clock runs."""
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


def main() -> None:
    logging.disable()
    incidents = Incidents(Path(), keep=10**6, max_bytes=2**40, weights=True, environment={})
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
    print_table(f"{size:.0f} MiB, on the disk", waiting, against="save_file, fsync")
    with mock.patch("os.fsync"):
        free = measured(
            {
                "save_file": lambda folder: alone(folder, same, wait=False),
                "incident without fsync": lambda folder: capture(incidents, folder, model),
            }
        )
    print_table(f"{size:.0f} MiB, handed to the system", free, against="save_file")


if __name__ == "__main__":
    main()
