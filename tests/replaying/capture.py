"""``python -m tests.replaying.capture FOLDER``: run every job with a guard until it breaks.

The guard writes the incidents; the refused gradients are saved too, for comparison.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from halfguard.guard.guard import Guard
from halfguard.workload import load
from tests.replaying.jobs import CASES, Case


def keep_gradients(guard: Guard, into: dict[str, Tensor]) -> None:
    """Copy the gradients just before the guard clears them."""
    clear = guard._stepper.clear

    def copy_and_clear() -> None:
        for name, parameter in guard.model.named_parameters():
            if parameter.grad is not None:
                into[name] = parameter.grad.clone()
        clear()

    guard._stepper.clear = copy_and_clear  # type: ignore[method-assign]


def capture(case: Case, folder: Path) -> Path:
    """Run one guarded step of a job; return its incident."""
    entry = f"tests.replaying.jobs:{case.name}"
    workload = load(entry, seed=7)
    _train_a_little(workload.model)
    guard = Guard(workload.model, workload.optimizer, case.config, run_dir=folder, entry=entry)
    gradients: dict[str, Tensor] = {}
    keep_gradients(guard, gradients)
    for batch in workload.batches:
        guard.step(workload.loss, batch)
    save_file(gradients, folder / "gradients.safetensors")
    return folder / "incidents" / "000000-r0"


def _train_a_little(model: nn.Module) -> None:
    """Move the weights away from those that the ENTRY makes, so that only the incident has them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)


if __name__ == "__main__":
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    torch.manual_seed(3)
    for case in CASES:
        path = capture(case, Path(sys.argv[1]) / case.name)
        assert path.is_dir(), f"{case} left no incident"
