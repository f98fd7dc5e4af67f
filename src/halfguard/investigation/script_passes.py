"""The passes of one script: each is a process of its own, and begins from the same files.

Ctrl-C, pressed once, ends the present pass; no other one begins, and the answer tells what is known. A signal
that arrives between two passes, while files are copied or cures are listed, must not lose that, so it raises
nothing. Pressed twice, it does what it did before.

A process that is forked from this one need not import torch again, which takes seconds. It is forked only
where that is safe: on Linux, without an accelerator, and if the script does not set variables that torch
reads when it is imported. The process has a session of its own, so that Ctrl-C reaches this one alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfguard.investigation.passes import (
    Event,
    PassKind,
    PassPlan,
    PassResult,
    Start,
    Target,
    TrialPlan,
    read_losses,
    read_result,
)
from halfguard.investigation.ranks import Ranks
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records.script_answer import ScriptAnswer
from halfguard.repairs.applying import apply_patch

_POLL = 0.02  # seconds
_REPORT = 0.5
PassWatch = Callable[[PassResult, float], None]  # progress, and the seconds since the start
# A rerun must not reach a tracker's server, and hashes must be the same in each pass.
_ENVIRONMENT = {"WANDB_MODE": "offline", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class _Forked:
    """A forked process, with the interface of ``subprocess.Popen``."""

    pid: int

    def poll(self) -> int | None:
        done, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None


_Process = subprocess.Popen[bytes] | _Forked


def can_fork(source: Path | None) -> bool:
    """Return whether passes of this script may be forked from this process."""
    if sys.platform != "linux" or threading.active_count() > 1 or Path("/dev/nvidiactl").exists():
        return False
    try:
        return source is not None and b"environ" not in source.read_bytes()
    except OSError:
        return False


def launch(
    plan: PassPlan,
    log: Path,
    watch: PassWatch,
    *,
    fork: bool,
    variables: Mapping[str, str],
    is_over: Callable[[], bool],
) -> PassResult:
    """Run one pass, until it ends or ``is_over()``; Ctrl-C ends it, and returns what was known by then."""
    answer, progress = Path(plan.answer), Path(f"{plan.answer}.progress")
    for path in (answer, progress):
        path.unlink(missing_ok=True)
    variables = {**_ENVIRONMENT, **os.environ, **variables}
    process = _fork(plan, log, variables) if fork else _start(plan, log, variables)
    started, due, stopped = time.monotonic(), 0.0, False
    try:
        while not stopped and process.poll() is None:
            now = time.monotonic()
            if now >= due:
                due = now + _REPORT
                watch(read_result(progress) or PassResult(), now - started)
                stopped = is_over()
            time.sleep(_POLL)
    except KeyboardInterrupt:
        stopped = True
    finally:
        _end_session(process)
    found = read_result(answer)
    if found is None or stopped:
        found = found or read_result(progress) or PassResult()
        return found.model_copy(update={"ended": "interrupted" if stopped else "died"})
    return found


def _end_session(process: _Process) -> None:
    """End what the process has left behind: loader workers, held copies."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    with suppress(ChildProcessError):
        while process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL)


def _start(plan: PassPlan, log: Path, variables: Mapping[str, str]) -> _Process:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "halfguard.investigation.one_pass"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=variables,
            start_new_session=True,
        )
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.write(plan.model_dump_json().encode())
    process.stdin.close()
    return process


def _fork(plan: PassPlan, log: Path, variables: Mapping[str, str]) -> _Process:
    # The first optimizer of a process imports it, which takes seconds: once here, not in each pass.
    import torch._dynamo  # noqa: F401, PLC0415

    from halfguard.investigation.one_pass import run_pass  # noqa: PLC0415 - it imports torch

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    try:
        os.setsid()
        os.environ.update(variables)
        with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_pass(plan)
    finally:
        os._exit(70)


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
_PRINTED_LINES = 200


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
    ranks: Ranks | None = None
    bad_rank: int | None = None
    inspect: tuple[int, ...] = ()  # backward passes of a good run
    interruption: Interruption = field(default_factory=Interruption)
    printed: dict[str, str] = field(default_factory=dict)  # by runs that ended, named like losses

    @property
    def script(self) -> str:
        """The user's file; empty for a module."""
        return "" if self.target.is_module else str(self.folder / self.target.name)

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
        in_fp32: bool = False,
        seed: int = 0,
    ) -> PassResult:
        """Run one pass, and return its result with the user's own paths."""
        if self.interruption.has_come():
            self.interruption.during = self.interruption.during or doing
            return PassResult(ended="interrupted")
        copy, ranks = self.copy, self.ranks
        if copy is not None and (ranks is None or ranks.rank == 0):
            copy.make()
        if trial is not None and trial.patch and copy is not None:
            applied = apply_patch(trial.patch, copy.inside(self.base))
            if not applied:  # the file is a link there
                return PassResult(ended="died", error="the patch could not be applied to the copy")
        variables = {} if ranks is None else ranks.begin_pass()
        self.log.write_bytes(b"")
        name = "other" if every_step else "losses" if trial is None else "patched"
        name = self.name_of(in_fp32=in_fp32, seed=seed) if in_fp32 or seed else name
        plan = PassPlan(
            kind=kind,
            target=self._inside(),
            folder=str(self._copied(self.folder)),
            base=str(self._copied(self.base)),
            answer=str(self.place / f"{kind}.json"),
            losses=str(self.place / f"{name}.bin"),
            steps=trial.steps if trial else self.steps if kind == "sense" else None,
            every_step=every_step,
            event=event,
            trial=self._trial_inside(change),
            start=start,
            alone=alone,
            inspect=self.inspect,
            patched=trial is not None,
            in_fp32=in_fp32,
            seed=seed,
            emulate=self.emulate,
            isolated=() if copy is None else copy.folders(),
            originals=(str(self.folder),) if copy is None else tuple(map(str, copy.roots)),
            copies="" if copy is None else str(copy.place),
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
            plan, self.log, report, fork=can_fork(source), variables=variables, is_over=is_over
        )
        if self.interruption.has_come():
            self.interruption.during = _doing(doing, result, event)
        elif result.ended == "interrupted" and time.monotonic() > until:
            result = result.model_copy(update={"ended": "late"})
        if kind == "sense":
            whole = result.ended in ("finished", "exited") or (trial is None and result.event)
            self.printed[name] = self.log_tail(_PRINTED_LINES) if whole else ""
        if ranks is not None:
            result = ranks.agree(result, self.bad_rank)
        return PassResult.model_validate_json(self.translate(result.model_dump_json()))

    def _copied(self, path: Path) -> Path:
        return path if self.copy is None else self.copy.inside(path)

    @staticmethod
    def name_of(*, in_fp32: bool, seed: int) -> str:
        """Return the name of the losses of a pass in FP32, or with another seed."""
        return ("fp32" if in_fp32 else "losses") + (f" {seed}" if seed else "")

    def losses(self, name: str) -> list[float]:
        """Return the losses of the last pass of a kind: "losses" of the first, "patched" or "fp32"."""
        return read_losses(str(self.place / f"{name}.bin"))

    def translate(self, text: str) -> str:
        """Replace paths of the copy by those of the user."""
        if self.copy is None:
            return text
        for made, folder in self.copy.pairs():
            text = text.replace(str(made), str(folder).rstrip(os.sep))
        return text

    def as_named(self, answer: ScriptAnswer) -> ScriptAnswer:
        """Return an answer in which the script has the user's name, and files beside it are relative."""
        text = answer.to_json()
        if not self.target.is_module:
            path, name = os.path.abspath(self.folder / self.target.name), self.target.name  # noqa: PTH100
            pattern = rf'(?<![\w/.-]){re.escape(_quoted(path))}(?=[:"])'
            text = re.sub(pattern, lambda _: _quoted(name), text)
        for root in (
            () if Path(self.target.name).is_absolute() else roots_of(self.target, self.folder)
        ):
            start = _quoted(os.path.join(root, ""))  # noqa: PTH118
            pattern = rf'(?<![\w/.-]){re.escape(start)}(?=[^\s:"]+\.py[:"])'
            beside = os.path.relpath(root, self.folder)
            prefix = "" if beside == "." else _quoted(f"{beside}{os.sep}")
            text = re.sub(pattern, lambda _, prefix=prefix: prefix, text)  # type: ignore[misc]
        return ScriptAnswer.from_json(text)

    def log_tail(self, count: int = _LOG_LINES) -> str:
        """Return the last lines that the script printed."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return self.translate("\n".join(lines[-count:]))

    def _trial_inside(self, trial: TrialPlan | None) -> TrialPlan | None:
        """Return a trial with its line in the copy, where a pass looks for it."""
        places = () if trial is None else trial.places
        inside = tuple((str(self._copied(Path(file))), line) for file, line in places)
        return None if trial is None else trial.model_copy(update={"places": inside})

    def _inside(self) -> Target:
        if self.copy is None or self.target.is_module:
            return self.target
        script = (self.folder / self.target.name).resolve()
        if script.is_relative_to(self.folder) and not Path(self.target.name).is_absolute():
            return self.target  # the same relative path in the copy
        return self.target.model_copy(update={"name": str(self.copy.inside(script))})


def _doing(doing: str, seen: PassResult, event: Event | None) -> str:
    """Return what a pass is doing: it tries changes as soon as the operation is known."""
    return doing if seen.culprit is None or event is None else f"trying fixes for step {event.step}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def roots_of(target: Target, folder: Path) -> tuple[Path, ...]:
    """Return the folders of a script: the working folder, and its own if that lies elsewhere."""
    if target.is_module:
        return (folder,)
    home = (folder / target.name).resolve().parent
    return (folder,) if home.is_relative_to(folder) else (folder, home)
