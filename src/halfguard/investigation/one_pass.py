"""The process of one pass: put the sensors on torch, run the script, and answer."""

from __future__ import annotations

import sys
from typing import NoReturn

from halfguard.errors import HalfguardError
from halfguard.investigation.approach import Approach
from halfguard.investigation.inspecting import Inspecting
from halfguard.investigation.leaving import leave
from halfguard.investigation.passes import PassPlan, PassResult, TrialResult
from halfguard.investigation.running import run_target, run_to_the_end
from halfguard.investigation.sensing import Sensing
from halfguard.investigation.surroundings import Surroundings
from halfguard.investigation.tracking import Tracking
from halfguard.investigation.training_loop import TrainingLoop
from halfguard.investigation.trial_choice import FP32
from halfguard.investigation.trying import Trying


def run_pass(plan: PassPlan) -> NoReturn:
    """Run one pass in this process, which ends with it."""
    sys.dont_write_bytecode = True
    loop, surroundings = TrainingLoop(alone=plan.alone), Surroundings(plan)
    try:
        loop.install()
        surroundings.watch()
        observer = _observer(plan, loop, surroundings)
        loop.observer = observer
        if isinstance(observer, Approach):
            observer.prepare()
    except HalfguardError as refused:
        leave(plan.answer, PassResult(error=str(refused)))
    error, ended = run_to_the_end(plan)
    finishing = loop.observer  # of a trial, in a copy of this process
    assert isinstance(finishing, Sensing | Approach | Inspecting)  # noqa: S101
    finishing.finish(error, ended)


def _observer(
    plan: PassPlan, loop: TrainingLoop, surroundings: Surroundings
) -> Sensing | Approach | Inspecting:
    code = run_target.__code__
    if plan.kind == "inspect":
        return Inspecting(plan, loop, code)
    if plan.event is None:
        return Sensing(plan, loop, surroundings)
    if plan.kind == "track":
        return Tracking(plan, loop, plan.event, code)

    def send(result: TrialResult) -> NoReturn:
        leave(
            plan.answer, PassResult(ended="event", trials=(result,), differs_at=trying.differs_at)
        )

    trying = Trying(plan, loop, plan.event, plan.trial or FP32, send)
    return trying


if __name__ == "__main__":
    run_pass(PassPlan.model_validate_json(sys.stdin.read()))
