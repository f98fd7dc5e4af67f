"""Replay the incidents of ``capture`` in another process.

``python -m tests.replaying.replay_captured FOLDER`` prints one JSON object per line: the autopsy, whether
the gradients are bitwise equal to those of the other process, and whether the step is applied after the
recommended cure.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from halfguard.guard.guard import Guard
from halfguard.incident import Incident, open_incident
from halfguard.records.autopsy import Autopsy, Cure
from halfguard.replaying.autopsy import replay
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.samples import select
from halfguard.workload import Workload, load
from tests.replaying.helper import patched_module
from tests.replaying.jobs import workload as workload_of

Fit = tuple[Workload, dict[str, Any], list[Any]]  # job, configuration, batches


def bitwise(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Return whether both hold the same tensors with the same bits, also for NaN."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name].view(torch.int32), right[name].view(torch.int32)) for name in left
    )


def same_gradients(incident: Incident, saved: Path) -> bool:
    step = ReplayedStep(incident, load(incident.record.entry))
    return bitwise(step.original().grads, load_file(saved))


def applied(incident: Incident, autopsy: Autopsy, work: Path) -> bool:
    """Apply the recommendation and run the step with a guard; return whether it was applied."""
    assert autopsy.cure is not None
    workload, config, batches = fit(autopsy.cure, incident, autopsy, work)
    guard = Guard(workload.model, workload.optimizer, config)
    for _ in range(16):  # a dynamic scale may have to fall first
        outcome = [guard.step(workload.loss, batch) for batch in batches][-1]
        if outcome.applied or outcome.cause != "gradient_overflow":
            break
    return outcome.applied


def fit(cure: Cure, incident: Incident, autopsy: Autopsy, work: Path) -> Fit:
    """Return the job with the recommended cure."""
    work.mkdir()
    name = incident.record.entry.rpartition(":")[2]
    make: Callable[[], Workload] = lambda: load(incident.record.entry)  # noqa: E731
    if cure.what == "operation":
        make = lambda: from_patched_source(cure.patch, name, work)  # noqa: E731
    config = {**incident.record.config, "incidents": None}
    step = ReplayedStep(incident, make())
    workload, batches = step.workload, step.batches
    if cure.what == "island":
        (work / "plan.yaml").write_text(cure.patch)
        config["plan"] = str(work / "plan.yaml")
    elif cure.what in ("scale", "precision"):
        config |= yaml.safe_load(cure.patch)
    elif cure.what == "data":
        bad = autopsy.micro_batch
        count = len(batches[bad]) if isinstance(batches[bad], Tensor) else len(batches[bad][0])
        rest = tuple(i for i in range(count) if i not in autopsy.samples)
        batches[bad] = select(batches[bad], rest)
    elif cure.what == "weights":
        exec(cure.patch, {"torch": torch, "model": workload.model})
    return workload, config, batches


def from_patched_source(patch: str, name: str, work: Path) -> Workload:
    """Make the job from a patched copy of the source."""
    assert patch, f"{name}: no patch"
    module = patched_module(patch, f"patched_{name}", work)
    plant = next(p for p in module.PLANTED_FAILURES if p.name.replace("-", "_") == name)
    return workload_of(plant, seed=0)


def result_of(run: Path) -> dict[str, Any]:
    incident = open_incident(run / "incidents" / "000000-r0")
    autopsy = replay(incident)  # from the folder and its own ENTRY
    record = incident.record
    equal = same_gradients(incident, run / "gradients.safetensors")
    cured = None if autopsy.cure is None else applied(incident, autopsy, run / "cure")
    return {
        "name": run.name,
        "autopsy": autopsy.to_json(),
        "same_gradients": equal,
        "comparable": any(map(math.isfinite, (record.step.loss, *record.grad_norms.values()))),
        "cured": cured,
    }


if __name__ == "__main__":
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    for run in sorted(Path(sys.argv[1]).iterdir()):
        print(json.dumps(result_of(run)), flush=True)
