"""``replay``: repeat a bad step, find where it began, and recommend a change that was run and worked.

Nothing is guessed. If the step does not fail again, the answer says so and lists what to suspect; it names no
cause. A cure is recommended only if the step was run with it and was good.

An incident may come from somebody else, and nothing in its folder is ever executed. The ENTRY that it records
is only a hint to the reader's own code. A file that arrived together with the incident is not executed,
unless the reader names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from halfguard.errors import UsageError
from halfguard.incident import Incident, open_incident
from halfguard.records.autopsy import Autopsy, Reproduced
from halfguard.replaying.cures import find_candidates
from halfguard.replaying.replayed_step import ReplayedStep, Result
from halfguard.replaying.restore import raise_if_private
from halfguard.replaying.trials import Trials, find_first_bad_number
from halfguard.step.random_state import seeded
from halfguard.workload import Workload, load


def find_workload(entry: Workload | str | None, incident: Incident) -> Workload:
    """Return the workload that the caller named, or else the one that the incident names."""
    if isinstance(entry, Workload):
        return entry
    if entry:
        return load(entry)
    recorded = incident.record.entry
    cure = "Name the function that describes the job: halfguard replay INCIDENT --entry file.py:function."
    if not recorded:
        raise UsageError(
            f"{incident.folder} does not contain the entry of the training job.",
            cure=f"{cure} Guard(..., entry=...) saves the entry in future incidents.",
        )
    if _came_with_it(recorded, incident.folder):
        raise UsageError(
            f"{incident.folder} names {recorded!r}, a file that came with it. Code that comes with an "
            "incident is run only if you name it.",
            cure=f"Check that file first. {cure}",
        )
    return load(recorded)


def _came_with_it(entry: str, folder: Path) -> bool:
    """Return whether the code is in the folder of the incident or of its run."""
    place = entry.rpartition(":")[0]
    # A module's name leads to a file as well, and a path may go through links.
    file = place if place.endswith(".py") else place.replace(".", "/")
    code, folder, here = Path(file).resolve(), folder.resolve(), Path.cwd().resolve()
    run = folder.parents[1] if folder.parent.name == "incidents" else folder
    homes = [folder] if here.is_relative_to(run) else [folder, run]
    return any(code.is_relative_to(home) for home in homes)


_SUSPECTS = (
    "hardware: a flipped bit in memory or a faulty core (run the same step on that machine several times)",
    "operations that are not deterministic on the device, such as atomic sums",
    "a race between the data loader and the step, or a tensor that was changed in place during the step",
    "state outside the model: hooks, global variables, files, a loss function that keeps its own counters",
)


def replay(
    incident: Incident | str | os.PathLike[str],
    entry: Workload | str | None = None,
    *,
    watch: Callable[[str], None] = lambda _: None,
) -> Autopsy:
    """Repeat the step of an incident and find its cause. ``entry`` is needed if the incident has none.

    If you pass a ``Workload``, the weights of the incident are loaded into it. ``watch`` is called with a
    description before each run.
    """
    incident = incident if isinstance(incident, Incident) else open_incident(incident)
    raise_if_private(incident)
    workload = find_workload(entry, incident)
    with seeded(workload.seed):  # the caller's generators are not changed
        return _autopsy(ReplayedStep(incident, workload), watch)


def _autopsy(step: ReplayedStep, watch: Callable[[str], None]) -> Autopsy:
    watch("the original step")
    result = step.original()
    reproduced = _reproduced(step, result)
    if reproduced == "no":
        return _report(step, reproduced, suspects=_SUSPECTS)
    watch("the first NaN or Inf")
    culprit = find_first_bad_number(
        step
    )  # also if the step is finite: an overflow may be swallowed
    trials = Trials(step, watch)
    candidates, bad = find_candidates(step, trials, culprit)
    return _report(
        step,
        reproduced,
        culprit=culprit,
        samples=() if bad is None else bad.samples,
        micro_batch=0 if bad is None else bad.micro_batch,
        trials=tuple(trials.done),
        saturation=trials.judge.saturation,
        cure=candidates[0].cure(trials.judge) if candidates else None,
    )


def _reproduced(step: ReplayedStep, result: Result) -> Reproduced:
    if step.matches_incident(result):
        return "bitwise"
    return "no" if result.is_good(step.limits) else "same fault"


def _report(step: ReplayedStep, reproduced: Reproduced, **found: Any) -> Autopsy:
    how = f"{step.record.precision} at loss scale {step.record.scale:g} on {step.device.type}"
    if step.emulated:
        how += ", under CUDA's autocast rules, emulated"
    return Autopsy(
        incident=step.incident.folder.name,
        step=step.record.step,
        cause=step.record.step.cause,
        reproduced=reproduced,
        how=how,
        differences=_differences(step),
        **found,
    )


def _differences(step: ReplayedStep) -> tuple[str, ...]:
    """Return the differences between this run and the one in which the step failed."""
    record = step.record
    then = record.environment.get("torch", torch.__version__)
    ranks = record.world_size
    facts = {
        "weights: they were saved some steps after the fault": not record.exact,
        "weights: the incident contains none, so the weights of the ENTRY were used": not record.weights,
        f"torch: {then} then, {torch.__version__} now": then != torch.__version__,
        f"device: {record.device} then, {step.device.type} now": record.device != step.device.type,
        "code: it had uncommitted changes": record.git.get("dirty") == "True",
        "random numbers: guard.backward() saves no random state": None in step.rng,
        f"other ranks: {ranks} took part; their gradients are in their own incidents": (ranks > 1),
        **{f"batch: {problem}": True for problem in record.problems},
    }
    return tuple(text for text, holds in facts.items() if holds)
