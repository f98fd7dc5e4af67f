"""Check the fault matrix: every fault, wherever it appears in a run, leaves exactly the weights that it must.

A run has some healthy steps, one step with a fault, and healthy steps after it. Its end is compared bit by
bit with a bare loop on the same device:

- skipped: a bare loop that never saw the batches of that step; the loss scale is halved if gradients
  overflowed;
- repeated in FP32: a bare loop that takes exactly that step in FP32;
- rolled back: the bare loop at an earlier step.

Every step has a random seed of its own, because a loop that never saw a batch drew no numbers for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from halfguard.acceptance.comparing import deterministic, differences, state_of
from halfguard.acceptance.fault_cells import FAULTS, MODELS, PHASES, Cell, cells
from halfguard.acceptance.jobs import (
    MAX_NORM,
    OPTIMIZERS,
    bare_step,
    loss_fn,
    make_batch,
    make_model,
)
from halfguard.acceptance.setting import Cases, Setting
from halfguard.guard.guard import Guard
from halfguard.precision_names import Precision
from halfguard.records import Action, Cause
from halfguard.records.acceptance import AcceptanceCase
from halfguard.step.random_state import seeded

NAME = "faults"
CLAIM = "After any fault, in any phase, the weights are bitwise what they must be, and the cause is named."

SCALE, AFTER = 64.0, 3


def run(setting: Setting) -> Cases:
    """Yield a case for each cell, and one for a rollback."""
    with deterministic(), seeded(0):
        for cell in cells(every=setting.size.every_combination):
            yield _judge(cell, setting.device)
        for optimizer in OPTIMIZERS:
            yield _roll_back(optimizer, setting.device)


def _judge(cell: Cell, device: torch.device) -> AcceptanceCase:
    found, action, cause = _guarded(cell, device)
    if (action, cause) != (cell.action, cell.fault.cause):
        problem = f"{action}, {cause} instead of {cell.action}, {cell.fault.cause}"
    else:
        problem = differences(_by_hand(cell, device), found)
    return AcceptanceCase.judged(str(cell), problem)


def _guarded(cell: Cell, device: torch.device) -> tuple[dict[str, Any], Action, Cause | None]:
    before, accumulate, _ = PHASES[cell.phase]
    model = make_model(cell.model, device)
    optimizer = OPTIMIZERS[cell.optimizer](model.parameters())
    config = {
        "accumulate": accumulate,
        "clip": {"max_norm": MAX_NORM},
        "scale": {"init": SCALE},
        "skip": {"on_nonfinite": "retry_fp32" if cell.retry else "skip"},
    }
    guard = Guard(model, optimizer, config)
    outcomes = []
    for step in range(before + 1 + AFTER):
        torch.manual_seed(1000 + step)
        outcomes.append([guard.step(loss_fn, b) for b in cell.batches(step, device)][-1])
    guard.summary()  # decides the rows that are still on their way
    bad = outcomes[before]
    return state_of(model, [optimizer], guard.scaler.get_scale()), bad.action, bad.cause


def _by_hand(cell: Cell, device: torch.device) -> dict[str, Any]:
    """Run the bare loop that the guarded run must equal."""
    before = PHASES[cell.phase][0]
    model = make_model(cell.model, device)
    optimizer = OPTIMIZERS[cell.optimizer](model.parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    for step in range(before + 1 + AFTER):
        torch.manual_seed(1000 + step)
        if step != before:
            bare_step(model, optimizer, scaler, cell.batches(step, device))
            continue
        if cell.action is Action.RETRY:
            off = torch.amp.GradScaler(device.type, enabled=False)
            bare_step(model, optimizer, off, cell.batches(step, device), Precision.FP32)
        if cell.lowers_scale:
            lower = {"scale": scaler.get_scale() / 2, "_growth_tracker": 0}
            scaler.load_state_dict(scaler.state_dict() | lower)
    return state_of(model, [optimizer], scaler.get_scale())


def _roll_back(optimizer: str, device: torch.device) -> AcceptanceCase:
    """Plant one NaN into a run that rolls back at the first bad step; it ends at an earlier state."""
    cell = Cell(FAULTS[0], "in a later step", MODELS[0], optimizer, retry=False)
    steps, name = 12, f"{FAULTS[0].name}, rolled back: {MODELS[0]}, {optimizer}"
    model, bare = make_model(cell.model, device), make_model(cell.model, device)
    made, by_hand = (OPTIMIZERS[optimizer](m.parameters()) for m in (model, bare))
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    config = {
        "clip": {"max_norm": MAX_NORM},
        "scale": {"init": SCALE},
        "skip": {"max_consecutive": 1},
        "recovery": {"every": 4, "prove": 2},
    }
    guard = Guard(model, made, config)
    states = []
    for step in range(steps):
        batch = make_batch(100 * step, device)
        for run_step in (
            lambda b=batch: guard.step(loss_fn, b),
            lambda b=batch: bare_step(bare, by_hand, scaler, [b]),
        ):
            torch.manual_seed(1000 + step)
            run_step()
        states.append(state_of(bare, []))
    guard.step(loss_fn, cell.fault.plant(batch))
    rollbacks = guard.summary().rollbacks
    ended = state_of(model, [])
    to = [step + 1 for step, state in enumerate(states[:-1]) if not differences(state, ended)]
    good = rollbacks == 1 and len(to) == 1
    problem = "" if good else f"{rollbacks} rollbacks, to the weights after steps {to}"
    reached = to[0] if to else math.nan
    return AcceptanceCase.judged(name, problem, steps=steps, rolled_back_to_step=reached)
