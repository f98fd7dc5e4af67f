"""The passes of one script: each is a process of its own, and begins from the same files.

Ctrl-C, pressed once, ends the present pass; no other one begins, and the answer tells what is known. A signal
that arrives between two passes, while files are copied or cures are listed, must not lose that, so it raises
nothing. Pressed twice, it does what it did before.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfguard.investigation.launching import can_fork, launch
from halfguard.investigation.passes import (
    Event,
    PassKind,
    PassPlan,
    PassResult,
    Start,
    Target,
    TrialPlan,
)
from halfguard.investigation.patching import apply_patch
from halfguard.investigation.ranks import Ranks
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records.script_answer import ScriptAnswer


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed, and during what."""

    during: str = ""
    _pressed: bool = False

    def has_come(self) -> bool:
        """Return whether it was pressed; a method, because a signal changes it at any time."""
        return self._pressed

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Note the first Ctrl-C inside the block; nothing is changed if the program ignores it."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before in (signal.SIG_IGN, None):
            yield
            return

        def press(_number: int, _frame: Any) -> None:
            self._pressed = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


Watch = Callable[[str, PassResult, float], None]
_LOG_LINES = 12


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
        return roots_of(self.target, self.folder)[-1]

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
            patched=trial is not None,
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


def roots_of(target: Target, folder: Path) -> tuple[Path, ...]:
    """Return the folders of a script: the working folder, and its own if that lies elsewhere."""
    if target.is_module:
        return (folder,)
    home = (folder / target.name).resolve().parent
    return (folder,) if home.is_relative_to(folder) else (folder, home)
