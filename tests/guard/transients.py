"""Models whose numbers overflow, and none of whose machines is at fault: ``scripts/soak transients [STEPS]``.

Every healthy model is trained at the highest loss scale, so that its gradients overflow, and every planted
failure of the zoo and of the periodic and other faults as it is. No step may be called a transient fault.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.models.planted import FAULTS, PERIODIC
from benchmarks.models.zoo import PLANTED_FAILURES
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from halfguard import Guard
from halfguard.errors import TrainingHaltedError
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision_names import Precision
from halfguard.step.random_state import seeded
from tests.guard import healthy_runs

Run = tuple[nn.Module, Optimizer, Callable[[Any, Any], Any], list[Any]]


def healthy_models(steps: int) -> Iterator[tuple[str, Run]]:
    for name in healthy_runs.NAMES:
        model, loss, batch = healthy_runs.job(name)
        model = model.float()
        yield name, (model, AdamW(model.parameters(), lr=3e-3), loss, [batch] * steps)


def overflowing_models(steps: int) -> Iterator[tuple[str, Run]]:
    for fault in (*FAULTS, *PERIODIC):
        work = fault.job(0)
        yield fault.name, (work.model, work.optimizer, work.loss, list(work.take(steps)))
    for plant in PLANTED_FAILURES:
        if not plant.compiled:  # with compiled code no fault is called transient
            job = plant.make(0)
            model = job.model.float()
            trained = [p for p in model.parameters() if p.requires_grad] or [nn.Parameter()]
            yield plant.name, (model, SGD(trained, lr=1e-4), job.loss_fn, [job.batch] * steps)


def run(given: Run, scale: float) -> tuple[int, int]:
    """Return how many steps were bad, and how many of them were called transient."""
    model, optimizer, loss_fn, batches = given
    skip = {"on_nonfinite": "retry_fp32", "max_consecutive": 1000}
    guard = Guard(model, optimizer, {"skip": skip, "scale": {"init": scale}})

    def loss(model: Any, batch: Any) -> Any:
        with autocast_like_cuda(Precision.FP16_MIXED, torch.device("cpu")):
            return loss_fn(model, batch).float()

    bad, notes = 0, []
    for batch in batches:
        try:
            bad += guard.step(loss, batch).cause is not None
        except TrainingHaltedError:
            break
    notes = [getattr(row, "note", "") for row in guard._recorder.journal.recent_rows(1000)]
    return bad, sum("transient fault" in note for note in notes)


def main(steps: int = 30) -> int:
    """Print the counts of both corpora; return the number of false claims."""
    wrong = 0
    for title, models, scale in (
        ("healthy", healthy_models, 2.0**24),
        ("overflowing", overflowing_models, 2.0**16),
    ):
        count = overflowed = steps_bad = 0
        with seeded(0):
            for name, given in models(steps):
                bad, told = run(given, scale)
                count, overflowed, steps_bad = count + 1, overflowed + bool(bad), steps_bad + bad
                wrong += told
                if told:
                    print(f"  {title}: {name}: {told} of {bad} bad steps called transient")
        print(f"{title}: {count} models, {overflowed} overflow, {steps_bad} bad steps", flush=True)
    print(f"{wrong} false transients")
    return wrong


if __name__ == "__main__":
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
