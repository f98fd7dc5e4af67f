"""Check that an incident captured on the device fails again on a CPU, and is explained there.

A GPU adds in another order than a CPU and draws other random numbers, so losses need not be bitwise equal.
The fault, its phase and its sample must be the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from halfguard.acceptance.jobs import (
    ENTRY,
    FUSED,
    MAX_NORM,
    OPTIMIZERS,
    Batch,
    loss_fn,
    make_batch,
    make_model,
)
from halfguard.acceptance.setting import Cases, Setting
from halfguard.guard.guard import Guard
from halfguard.records.acceptance import AcceptanceCase
from halfguard.records.autopsy import Autopsy
from halfguard.records.step import Cause
from halfguard.replaying import replay
from halfguard.step.random_state import seeded

NAME = "incidents"
CLAIM = "An incident captured on the device fails again on a CPU, with the same cause."

HEALTHY_STEPS, SCALE = 3, 64.0


@dataclass(frozen=True)
class _Planted:
    """A fault, and what the replay must find."""

    name: str
    part: str
    value: float
    cause: Cause
    phase: str = ""  # of the operation where it begins; a bad batch has none
    sample: int | None = None

    def plant(self, batch: Batch) -> Batch:
        planted = dict(batch)
        planted[self.part] = batch[self.part].clone()
        place = planted["x"][self.sample] if self.part == "x" else planted[self.part]
        place.fill_(self.value)
        return planted

    def problem(self, found: Autopsy) -> str:
        """Return what the replay failed to find, or an empty string."""
        if found.reproduced == "no":
            return "the step does not fail on the CPU"
        if found.cause is not self.cause:
            return f"the cause is {found.cause}, not {self.cause}"
        if self.sample is not None and found.samples != (self.sample,):
            return f"the bad samples are {found.samples}, not {(self.sample,)}"
        phase = "" if found.culprit is None else found.culprit.phase
        if self.phase and phase != self.phase:
            return f"it begins in the {phase or 'data'}, not in the {self.phase}"
        return ""


_FAULTS = (
    _Planted("NaN in a sample", "x", math.nan, Cause.BAD_BATCH, sample=2),
    _Planted("overflow in the forward pass", "value", 1e6, Cause.FORWARD_OVERFLOW, "forward"),
    _Planted("overflow in the gradient", "gradient", 1e6, Cause.GRADIENT_OVERFLOW, "backward"),
)


def run(setting: Setting) -> Cases:
    """Yield a case for each fault, with a fused optimizer and another."""
    for fault in _FAULTS:
        for optimizer in (FUSED, "AdamW foreach"):
            with seeded(0):
                yield _capture_and_replay(fault, optimizer, setting)


def _capture_and_replay(fault: _Planted, optimizer: str, setting: Setting) -> AcceptanceCase:
    name = f"{fault.name}, {optimizer}"
    folder = _capture(fault, optimizer, setting, setting.folder / name.replace(" ", "-"))
    if folder is None:
        return AcceptanceCase(name=name, status="failed", detail="no incident was captured")
    found = replay(folder, ENTRY)
    problem = fault.problem(found)
    bitwise = float(found.reproduced == "bitwise")
    return AcceptanceCase.judged(name, problem, bitwise=bitwise, changes_tried=len(found.trials))


def _capture(fault: _Planted, optimizer: str, setting: Setting, run_dir: Path) -> Path | None:
    """Run some healthy steps and the fault; return the folder of the incident."""
    model = make_model("MLP with BatchNorm", setting.device)
    config = {"clip": {"max_norm": MAX_NORM}, "scale": {"init": SCALE, "floor": SCALE}}
    made = OPTIMIZERS[optimizer](model.parameters())
    guard = Guard(model, made, config, run_dir=run_dir, entry=ENTRY)
    for seed in range(HEALTHY_STEPS):
        guard.step(loss_fn, make_batch(seed, setting.device))
    guard.step(loss_fn, fault.plant(make_batch(HEALTHY_STEPS, setting.device)))
    guard.close()
    return next(iter(sorted((run_dir / "incidents").glob("*-r0"))), None)
