"""``replay``: repeat a bad step, name where it began, and recommend a change that was seen to work.

Nothing is guessed. If the step does not break again, that is the answer, with what to suspect; no cause is
invented for it. A cure is recommended only if the step was run with it and was good.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from halfguard.incident import Incident, open_incident
from halfguard.records.autopsy import Autopsy, Reproduced
from halfguard.records.culprit import Culprit
from halfguard.replaying.cures import choose
from halfguard.replaying.entry import workload_of
from halfguard.replaying.producer import first_bad_number
from halfguard.replaying.replayed_step import ReplayedStep, Result
from halfguard.replaying.restore import bare
from halfguard.replaying.suspects import SUSPECTS, differences
from halfguard.replaying.trials import Trials
from halfguard.tracing.nesting import tensors_in
from halfguard.workload import Workload, seeded


def replay(
    incident: Incident | str | os.PathLike[str],
    entry: Workload | str | None = None,
    *,
    watch: Callable[[str], None] = lambda _: None,
) -> Autopsy:
    """Repeat the step of an incident and say what killed it; ``entry`` is needed if the incident has none.

    A ``Workload`` that is passed gets the weights of the incident. ``watch`` is told what is run next.
    """
    incident = incident if isinstance(incident, Incident) else open_incident(incident)
    workload = workload_of(entry, incident)
    with seeded(workload.seed):  # the caller's generators stay as they are
        return _autopsy(ReplayedStep(incident, workload), watch)


def _autopsy(step: ReplayedStep, watch: Callable[[str], None]) -> Autopsy:
    watch("the step as it was")
    result = step.original()
    reproduced = _reproduced(step, result)
    if reproduced == "no":
        return _report(step, reproduced, suspects=SUSPECTS)
    watch("the first bad number")
    culprit = None if result.finite else first_bad_number(step)
    trials = Trials(step, watch)
    cure, apple = choose(step, trials, culprit)
    return _report(
        step,
        reproduced,
        culprit=culprit,
        way=_way(step, culprit),
        samples=() if apple is None else apple.samples,
        micro_batch=0 if apple is None else apple.micro_batch,
        trials=tuple(trials.done),
        cure=cure,
    )


def _reproduced(step: ReplayedStep, result: Result) -> Reproduced:
    if step.equals_the_original(result):
        return "bitwise"
    return "no" if result.within(step.limits) else "same fault"


def _way(step: ReplayedStep, culprit: Culprit | None) -> tuple[str, ...]:
    """The modules whose outputs were not finite, in the order in which they finished."""
    if culprit is None or culprit.phase == "backward" or culprit.module is None:
        return ()
    model, carried = step.copy(), dict[str, None]()

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if any(not bool(value.isfinite().all()) for _, value in tensors_in(output)):
                carried.setdefault(name)

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(bare(name)))
    with torch.compiler.set_stance("force_eager"):  # hooks that look at numbers cannot be compiled
        for index in range(len(step.batches)):
            step.part(model, index, step.batch(index))
    names = list(carried)
    # What came before the culprit holds infinities that are meant, such as masks.
    start = names.index(culprit.module) if culprit.module in names else 0
    return tuple(name or "the model" for name in names[start:])


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
        differences=differences(step),
        **found,
    )
