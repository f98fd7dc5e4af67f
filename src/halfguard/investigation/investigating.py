"""Run somebody's script as it is, and answer why it fails: the passes, one after the other.

The first pass runs until a number is bad. The second tracks the bad step only, and tries changes on it. If
trials cannot be forked from the second pass, a third one runs the bad step in FP32.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.investigation.answering import answer_bad_number, answer_crash, answer_good_run
from halfguard.investigation.crashes import Crash, crash_place, with_place
from halfguard.investigation.cures import list_cures
from halfguard.investigation.inspecting import choose_passes
from halfguard.investigation.interrupting import Interruption
from halfguard.investigation.launching import can_fork, launch
from halfguard.investigation.passes import (
    Event,
    PassKind,
    PassPlan,
    PassResult,
    Start,
    Target,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.patching import apply_patch, fits
from halfguard.investigation.proving import Proven, is_worth_it, prove, without_proof
from halfguard.investigation.ranks import Ranks
from halfguard.investigation.trial_choice import CALIBRATED, run_trials
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records import write_atomically
from halfguard.records.autopsy import is_source_patch
from halfguard.records.script_answer import ScriptAnswer
from halfguard.replaying import ANSWER_FILE

Watch = Callable[[str, PassResult, float], None]
_LOG_LINES = 12
_TRACEBACK_LINES = 2000
_BEFORE_THE_STEP = (None, "input", "parameter", "buffer")


@dataclass(frozen=True)
class Patched:
    """A change of the script for one pass, and how long that may run."""

    patch: str
    steps: int
    seconds: float


@dataclass
class Investigation:
    """The passes of one script; each begins from the same files."""

    target: Target
    folder: Path  # of the user
    place: Path  # temporary
    watch: Watch
    steps: int | None = None
    emulate: bool = False
    copy: WorkingCopy | None = None
    incident: str = ""
    ranks: Ranks | None = None
    bad_rank: int | None = None
    inspect: tuple[int, ...] = ()  # backward passes of a good run
    interruption: Interruption = field(default_factory=Interruption)

    @property
    def log(self) -> Path:
        """What the script printed in the present pass."""
        return self.place / "log.txt"

    @property
    def base(self) -> Path:
        """The folder where the paths of a patch begin: the working folder, or that of a script elsewhere."""
        return _roots(self.target, self.folder)[-1]

    def run(
        self,
        kind: PassKind,
        doing: str,
        *,
        event: Event | None = None,
        start: Start = "event",
        alone: bool = False,
        every_step: bool = False,
        change: TrialPlan | None = None,
        trial: Patched | None = None,
    ) -> PassResult:
        """Run one pass, and return its result with the user's own paths."""
        if self.interruption.has_come():
            self.interruption.during = self.interruption.during or doing
            return PassResult(ended="interrupted")
        copy, ranks = self.copy, self.ranks
        if copy is not None and (ranks is None or ranks.rank == 0):
            copy.make()
        if trial is not None and copy is not None:
            applied = apply_patch(trial.patch, copy.inside(self.base))
            if not applied:  # the file is a link there
                return PassResult(ended="died", error="the patch could not be applied to the copy")
        variables = {} if ranks is None else ranks.begin_pass()
        self.log.write_bytes(b"")
        plan = self._plan(kind, change, trial, every_step=every_step).model_copy(
            update={"event": event, "start": start, "alone": alone}
        )
        source = None if self.target.is_module else self.folder / self.target.name
        until = math.inf if trial is None else time.monotonic() + trial.seconds

        def is_over() -> bool:
            if self.interruption.has_come() or time.monotonic() > until:
                return True
            return ranks is not None and ranks.others_have_ended()

        def report(seen: PassResult, seconds: float) -> None:
            counts = seen if seen.culprit is None else PassResult()  # trials have no steps to count
            self.watch(_doing(doing, seen, event), counts, seconds)

        result = launch(
            plan,
            self.log,
            report,
            fork=can_fork(source),
            variables=variables,
            is_over=is_over,
        )
        if self.interruption.has_come():
            self.interruption.during = _doing(doing, result, event)
        elif result.ended == "interrupted" and time.monotonic() > until:
            result = result.model_copy(update={"ended": "late"})
        if ranks is not None:
            result = ranks.agree(result, self.bad_rank)
        return PassResult.model_validate_json(self.translate(result.model_dump_json()))

    def _plan(
        self, kind: PassKind, change: TrialPlan | None, trial: Patched | None, *, every_step: bool
    ) -> PassPlan:
        """Return the plan of a pass, with the paths of the copy."""
        copy = self.copy
        return PassPlan(
            kind=kind,
            target=self._inside(),
            folder=str(self.folder if copy is None else copy.inside(self.folder)),
            base=str(self.base if copy is None else copy.inside(self.base)),
            answer=str(self.place / f"{kind}.json"),
            losses=str(self.place / ("other.bin" if every_step or trial else "losses.bin")),
            steps=trial.steps if trial else self.steps if kind == "sense" else None,
            every_step=every_step,
            trial=self._trial_inside(change),
            inspect=self.inspect,
            emulate=self.emulate,
            isolated=() if copy is None else copy.folders(),
            originals=(str(self.folder),) if copy is None else tuple(map(str, copy.roots)),
            links="" if copy is None else str(copy.links),
            incident=self.incident if kind == "track" else "",
        )

    def translate(self, text: str) -> str:
        """Replace paths of the copy by those of the user."""
        if self.copy is None:
            return text
        for made, folder in self.copy.pairs():
            text = text.replace(str(made), str(folder).rstrip(os.sep))
        return text

    def as_named(self, answer: ScriptAnswer) -> ScriptAnswer:
        """Return an answer in which the script has the name that the user gave."""
        if self.target.is_module:
            return answer
        path, name = os.path.abspath(self.folder / self.target.name), self.target.name  # noqa: PTH100
        pattern = rf'(?<![\w/.-]){re.escape(_quoted(path))}(?=[:"])'
        text = re.sub(pattern, lambda _: _quoted(name), answer.to_json())
        return ScriptAnswer.from_json(text)

    def log_tail(self, count: int = _LOG_LINES) -> str:
        """Return the last lines that the script printed."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return self.translate("\n".join(lines[-count:]))

    def _trial_inside(self, trial: TrialPlan | None) -> TrialPlan | None:
        """Return a trial with its line in the copy, where a pass looks for it."""
        if trial is None or trial.place is None or self.copy is None:
            return trial
        file, line = trial.place
        return trial.model_copy(update={"place": (str(self.copy.inside(Path(file))), line)})

    def _inside(self) -> Target:
        if self.copy is None or self.target.is_module:
            return self.target
        script = (self.folder / self.target.name).resolve()
        if script.is_relative_to(self.folder) and not Path(self.target.name).is_absolute():
            return self.target  # the same relative path in the copy
        return self.target.model_copy(update={"name": str(self.copy.inside(script))})


def _doing(doing: str, seen: PassResult, event: Event | None) -> str:
    """Return what a pass is doing: it tries changes as soon as the operation is known."""
    return (
        doing if seen.culprit is None or event is None else f"trying changes of step {event.step}"
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def investigate(
    target: Target,
    *,
    steps: int | None = None,
    in_place: bool = False,
    emulate: bool = False,
    incident: str = "",
    watch: Watch = lambda *_: None,
) -> ScriptAnswer:
    """Run a script until a number is bad, and answer where it arose and what prevents it."""
    folder = Path.cwd()
    if not target.is_module and not (folder / target.name).is_file():
        raise UsageError(
            f"There is no file {target.name}.",
            cure="Name a Python script, or a module: halfguard why -m package.module.",
        )
    ranks = Ranks.of_environment()
    with _temporary_folder() as place:
        shared = place if ranks is None else ranks.folder
        copy = None if in_place else WorkingCopy(shared / "copy", _roots(target, folder))
        one = Investigation(target, folder, place, watch, steps, emulate, copy, incident, ranks)
        # Ranks end each other; a signal that raises nothing would leave one waiting.
        listening = one.interruption.listen() if ranks is None else contextlib.nullcontext()
        try:
            with listening:
                return one.as_named(_investigate(one))
        finally:
            if ranks is not None:
                ranks.leave()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="halfguard-why-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def _roots(target: Target, folder: Path) -> tuple[Path, ...]:
    if target.is_module:
        return (folder,)
    home = (folder / target.name).resolve().parent
    return (folder,) if home.is_relative_to(folder) else (folder, home)


def _investigate(one: Investigation) -> ScriptAnswer:
    first = one.run("sense", "running the script")
    log = one.log_tail() if first.error or first.ended == "died" else ""
    roots = _roots(one.target, one.folder)
    place = crash_place(one.log_tail(_TRACEBACK_LINES), roots) if first.error else None
    log = with_place(log, place)
    shared = () if one.copy is None else (*one.copy.shared, *map(str, one.copy.changed()))
    if first.event is None:
        inspected = None
        if first.backward and first.ended != "interrupted":
            one.inspect = choose_passes(first)
            inspected = one.run("inspect", "auditing a few steps")
        answer = answer_good_run(one.target, first, inspected, log=log, shared=shared)
        notes = (*answer.notes, *_further_notes(one, answer))
        return answer.model_copy(update={"notes": notes})
    if one.ranks is not None:
        one.bad_rank = first.rank
    event, second, note = _track(one, first, first.event)
    if not second.trials and second.culprit is not None and not note:
        second = _try_in_passes(one, first, event, second)
    crash = Crash(first.error, place, second.made)
    if not crash.is_of_scaler and (event.kind != "exception" or second.culprit is not None):
        crash = None
    proven = _cure(one, first, event, second, crash)
    answer = (
        answer_bad_number(one.target, first, event, second, proven, note=note, shared=shared)
        if crash is None
        else answer_crash(one.target, first, crash, proven, shared)
    )
    notes = (*answer.notes, *_further_notes(one, answer))
    answer = answer.model_copy(update={"log": log, "rank": one.bad_rank, "notes": notes})
    if answer.incident:
        write_atomically(Path(answer.incident) / ANSWER_FILE, one.as_named(answer).to_json())
    return answer


def _further_notes(one: Investigation, answer: ScriptAnswer) -> Iterator[str]:
    if one.interruption.has_come() and one.interruption.during:
        yield f"It was interrupted while {one.interruption.during}: this is what was known by then."
    if one.base != one.folder and answer.cure is not None and is_source_patch(answer.cure.patch):
        yield f"The paths of the patch begin in {one.base}: apply it there."


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
        doing = "looking for the step that broke the parameters"
        broke = one.run("sense", doing, every_step=True).event
        if broke is not None and broke.kind == "parameters" and broke.backward < event.backward:
            later = f"{broke.how}; it was seen {first.steps - broke.step} steps later"
            return _track(one, first, broke.model_copy(update={"how": later}))
    if event.backward == 0 and kind in _BEFORE_THE_STEP:
        earlier = one.run("track", "tracking the whole script", event=event, start="script")
        if earlier.culprit is not None:
            note = "It was found by tracking the script from its first line."
            return event, earlier, note
    elif found.culprit is None:
        again = one.run("track", "tracking every step", event=event, start="first module")
        if again.culprit is not None:
            why = (
                "The bad number is older than the step that showed it"
                if found.differs_at is None
                else f"The run is not repeatable (losses differ from {found.differs_at} on)"
            )
            note = f"{why}: it was found by tracking every step of another run."
            return event, again, note
    return event, found, ""


def _cure(
    one: Investigation, first: PassResult, event: Event, second: PassResult, crash: Crash | None
) -> Proven:
    """Choose a cure: the first one whose patch carries the script beyond the bad step."""
    script = "" if one.target.is_module else str(one.folder / one.target.name)
    with contextlib.chdir(one.base):  # paths of patches begin there
        cures = list_cures(second, event, script) if crash is None else crash.cures()
    can_patch = one.copy is not None and one.ranks is None and second.ended != "interrupted"
    if not can_patch or not is_worth_it(first, event):
        return Proven(without_proof(cures))

    def run(patch: str, steps: int, seconds: float) -> PassResult | None:
        if not fits(patch, one.base):
            return None
        return one.run("sense", "running the patched script", trial=Patched(patch, steps, seconds))

    return prove(cures, first, event, run)


def _try_in_passes(
    one: Investigation, first: PassResult, event: Event, second: PassResult
) -> PassResult:
    """Run trials as passes of their own, where they cannot be forked; only FP32, if they take long."""
    older = second.culprit is not None and second.culprit.kind == "parameter"
    if second.differs_at is not None or (older and event.kind == "parameters"):
        return second

    def run(plan: TrialPlan) -> TrialResult | None:
        cheap = one.ranks is None and is_worth_it(first, event)
        if plan.kind != "fp32" and not (cheap and plan.scale in (None, CALIBRATED)):
            return None
        found = one.run("judge", f"trying {plan.name}", event=event, change=plan)
        return found.trials[0] if found.trials and found.differs_at is None else None

    return second.model_copy(update={"trials": tuple(run_trials(second, event, run))})
