"""Run somebody's script as it is, and answer why it fails: the passes, one after the other.

The first pass runs until a number is bad. The second tracks the bad step only, and tries changes on it. If
trials cannot be forked from the second pass, a third one runs the bad step in FP32.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.investigation.answering import (
    answer_bad_number,
    answer_crash,
    answer_good_run,
    name_failure,
)
from halfguard.investigation.bad_runs import fix_bad_run, try_in_passes
from halfguard.investigation.good_runs import fix_good_run
from halfguard.investigation.inspecting import choose_passes
from halfguard.investigation.misuse import Crash, crash_place, with_place
from halfguard.investigation.passes import Event, PassResult, Start, Target
from halfguard.investigation.proof import Proven
from halfguard.investigation.ranks import Ranks
from halfguard.investigation.script_passes import Investigation, Watch, roots_of
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records.autopsy import is_source_patch
from halfguard.records.script_answer import ScriptAnswer

__all__ = ["Investigation", "investigate"]
_TRACEBACK_LINES = 2000
_SOON = 10.0  # seconds of a script that may be tracked as a whole, for what it has read
_FEWEST = 3  # losses of 0 that are no chance
_OPTIONS = (
    "If the script needs options, write them after its name: halfguard why script.py --data x. Options of "
    "halfguard come before the name."
)
_BEFORE_THE_STEP = (None, "input", "parameter", "buffer")


def investigate(
    target: Target,
    *,
    steps: int | None = None,
    in_place: bool = False,
    emulate: bool = False,
    watch: Watch = lambda *_: None,
) -> ScriptAnswer:
    """Run a script until a number is bad, and answer where it arose and what prevents it."""
    folder = Path.cwd()
    script = folder / target.name
    if not target.is_module and not script.is_file():
        is_folder = f"{target.name} is a folder, not a script."
        raise UsageError(
            is_folder if script.is_dir() else f"The file {target.name} does not exist.",
            cure="Name a Python script, or a module: halfguard why -m package.module.",
        )
    ranks = Ranks.of_environment()
    with tempfile.TemporaryDirectory(prefix="halfguard-why-", ignore_cleanup_errors=True) as name:
        place = Path(name).resolve()
        shared = place if ranks is None else ranks.folder
        copy = None if in_place else WorkingCopy(shared / "copy", roots_of(target, folder))
        one = Investigation(target, folder, place, watch, steps, emulate, copy, ranks)
        # Ranks end each other; a signal that raises nothing would leave one waiting.
        listening = one.interruption.listen() if ranks is None else contextlib.nullcontext()
        try:
            with listening:
                return one.as_named(_investigate(one))
        finally:
            if ranks is not None:
                ranks.leave()


def _investigate(one: Investigation) -> ScriptAnswer:
    first = one.run("sense", "running the script")
    log = one.log_tail() if first.error or first.ended == "died" else ""
    roots = roots_of(one.target, one.folder)
    place = crash_place(one.log_tail(_TRACEBACK_LINES), roots) if first.error else None
    log = with_place(log, place)
    shared = () if one.copy is None else tuple(map(str, one.copy.changed()))
    if first.event is None:
        return _answer_good_run(one, first, log, shared)
    if one.ranks is not None:
        one.bad_rank = first.rank
    early = answer_crash(one.target, first, Crash(first.error, place, first.made), Proven(), shared)
    if early.exited_early and first.made.optimizer is None:  # nothing was computed yet
        return early.model_copy(update={"log": log, "advice": _OPTIONS})
    event, second, note = _track(one, first, first.event)
    if read := _read_from_data(first, event, second):
        good = first.model_copy(update={"event": None})
        return _answer_good_run(one, good, log, shared, notes=(read,))
    if not second.trials and second.culprit is not None and not note:
        second = try_in_passes(one, first, event, second)
    found = Crash(first.error, place, second.made)
    is_crash = event.kind == "exception" and second.culprit is None
    crash = found if is_crash or found.is_of_scaler else None
    proven = fix_bad_run(one, first, event, second, crash)
    answer = (
        answer_bad_number(one.target, first, event, second, proven, note=note, shared=shared)
        if crash is None
        else answer_crash(one.target, first, crash, proven, shared)
    )
    notes = (*answer.notes, *_further_notes(one, first, answer))
    reasons = [one.code for one in first.misuse if one.kind in ("half moments", "unscaled early")]
    reasons += [] if second.reason is None else [second.reason.code]
    code = name_failure(answer, first.misuse, next(iter(reasons), ""), first.made)
    known = {"log": log, "rank": one.bad_rank, "notes": notes, "code": code}
    return answer.model_copy(update=known)


def _answer_good_run(
    one: Investigation,
    first: PassResult,
    log: str,
    shared: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> ScriptAnswer:
    inspected = None
    trains = first.backward or (first.made.optimizer is not None and not first.error)
    if trains and first.ended != "interrupted":
        one.inspect = choose_passes(first)
        inspected = one.run("inspect", "auditing a few steps")
    misused, proven = fix_good_run(one, first, inspected)
    answer = answer_good_run(
        one.target, first, inspected, misused, proven=proven, log=log, shared=shared
    )
    notes = (*notes, *answer.notes, *_further_notes(one, first, answer))
    named = {"notes": notes, "code": name_failure(answer, misused)}
    return answer.model_copy(update=named)


def _read_from_data(first: PassResult, event: Event, second: PassResult) -> str:
    """Return a note about a value that was read, and was NaN or Inf before anything was computed; or ""."""
    culprit = second.culprit
    if event.kind != "looked" or culprit is None or culprit.kind != "input" or not first.backward:
        return ""
    return (
        f"At {culprit.place} {event.how}, which is no failure of training: {culprit.name} held this value "
        "before anything was computed from it, and the loss of every backward pass was finite."
    )


def _further_notes(one: Investigation, first: PassResult, answer: ScriptAnswer) -> Iterator[str]:
    cuda = any(region.startswith("cuda ") for region in first.regions)
    if one.emulate and first.backward and not cuda:
        yield (
            "--emulate had no effect because the script never entered torch.autocast('cuda'). On "
            "a CPU, Lightning and Trainer replace FP16 with BF16 or FP32. Run the script on a "
            "GPU, or analyze its model with halfguard probe."
        )
    losses = one.losses("losses")
    if answer.outcome == "nothing bad" and len(losses) >= _FEWEST and not any(losses):
        yield (
            f"The loss of all {len(losses)} backward passes was exactly 0. Some losses are 0 by "
            "construction, such as that of a policy gradient; otherwise the script learns nothing."
        )
    if one.interruption.has_come() and one.interruption.during:
        yield (
            f"halfguard was interrupted while {one.interruption.during}, so this answer is "
            "incomplete."
        )
    if one.base != one.folder and answer.cure is not None and is_source_patch(answer.cure.patch):
        yield f"The paths in the patch are relative to {one.base}, so apply it there."


def _track(one: Investigation, first: PassResult, event: Event) -> tuple[Event, PassResult, str]:
    """Track the bad step; return its event, the result, and how it was found if not in the usual way."""
    doing = f"tracking step {event.step}"
    if first.workers and one.ranks is None:
        # What a loader computes is seen only in this process; it may draw other random numbers here.
        start: Start = "event" if event.backward else "script"
        found = one.run("track", doing, event=event, start=start, alone=True)
        known = found.culprit is not None and found.differs_at is None and not found.bad_before
        if known or found.ended == "interrupted":
            return event, found, ""
    found = one.run("track", doing, event=event)
    kind = None if found.culprit is None else found.culprit.kind
    if found.ended == "interrupted":
        return event, found, ""
    if found.bad_before and event.backward:
        doing = "looking for the step that corrupted the parameters"
        broke = one.run("sense", doing, every_step=True).event
        if broke is not None and broke.kind == "parameters" and broke.backward < event.backward:
            later = f"{broke.how}; this was noticed {first.steps - broke.step} steps later"
            return _track(one, first, broke.model_copy(update={"how": later}))
    from_data = kind == "input" and first.seconds < _SOON
    if from_data or (event.backward == 0 and kind in _BEFORE_THE_STEP):
        earlier = one.run("track", "tracking the whole script", event=event, start="script")
        if earlier.culprit is not None and earlier.culprit.kind == "op":
            note = "The operation was found by tracking the script from its first line."
            if event.backward:  # its trials ended at the first step
                in_fp32 = tuple(trial for trial in found.trials if trial.plan.kind == "fp32")
                earlier = earlier.model_copy(update={"trials": in_fp32})
            return event, earlier, note
    elif found.culprit is None:
        again = one.run("track", "tracking every step", event=event, start="first module")
        if again.culprit is not None:
            why = (
                "The NaN or Inf arose before the step in which it was noticed"
                if found.differs_at is None
                else (
                    "The run is not reproducible (losses differ from backward pass "
                    f"{found.differs_at} on)"
                )
            )
            note = f"{why}, so the operation was found by tracking every step of another run."
            return event, again, note
    return event, found, ""
