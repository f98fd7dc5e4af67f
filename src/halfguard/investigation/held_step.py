"""The bad step, held: a copy of the process from which trials are forked, or the step repeated in place.

Running the script again up to the step would cost its whole time for every trial. A fork costs nothing, but
works only if the process has no other threads, no worker processes and no accelerator. Threads of OpenMP are
lost in a fork, so a copy computes on one thread. Open files are shared with the original, so their positions
are put back before each trial.

Elsewhere the statements of the script from the beginning of the loop's body, or of the function, up to the
backward pass are run again with the variables that they had. Before each trial gradients, buffers and random
state are put back. The first repeat changes nothing, and has to end as the step did, with the same loss: a
body that fetches another batch, or steps an optimizer, cannot be repeated, and nothing is claimed of it.
"""

from __future__ import annotations

import ast
import linecache
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halfguard.dist.collectives import world_size
from halfguard.investigation.bus import HookBus
from halfguard.investigation.passes import TrialPlan, TrialResult
from halfguard.step.random_state import capture_random_state, restore_random_state

_SECONDS = 120.0  # for one trial
_HARMLESS_THREADS = {"TMonitor"}  # tqdm's


@dataclass
class HeldProcess:
    """The held copy, as its original sees it; in a fork of the copy, ``trial`` is what to try."""

    _requests: int  # file descriptors
    _results: int
    trial: TrialPlan | None = None

    @classmethod
    def is_possible(cls) -> bool:
        """Return whether this process can be copied."""
        threads = {type(t).__name__ for t in threading.enumerate()} - _HARMLESS_THREADS
        alone = threads <= {"_MainThread"} and not multiprocessing.active_children()
        accelerated = torch.accelerator.is_available()
        return sys.platform == "linux" and alone and not accelerated and world_size() == 1

    @classmethod
    def hold(cls) -> HeldProcess:
        """Make a copy and return; return again, with a trial, in each fork of the copy."""
        (reads_request, requests), (results, writes_result) = os.pipe(), os.pipe()
        if os.fork():
            os.close(reads_request)
            os.close(writes_result)
            return cls(requests, results)
        os.close(requests)
        os.close(results)
        positions = _file_positions()
        while line := _read_line(reads_request):
            pid = os.fork()
            if not pid:
                torch.set_num_threads(1)
                for descriptor, position in positions.items():
                    with suppress(OSError):
                        os.lseek(descriptor, position, os.SEEK_SET)
                return cls(reads_request, writes_result, TrialPlan.model_validate_json(line))
            if not _ended_well(pid):
                os.write(writes_result, b"\n")
        os._exit(0)

    def run(self, trial: TrialPlan) -> TrialResult | None:
        """Run one trial in a fork; None if it did not end by itself."""
        try:
            os.write(self._requests, f"{trial.model_dump_json()}\n".encode())
            line = _read_line(self._results)
        except OSError:
            return None
        return TrialResult.model_validate_json(line) if line.strip() else None

    def send(self, result: TrialResult) -> NoReturn:
        """Answer from a fork, and end it."""
        # JSON has no line break outside of strings, and none in them.
        os.write(self._results, f"{result.model_dump_json()}\n".encode())
        os._exit(0)


def _ended_well(pid: int) -> bool:
    """Wait for a fork that answers by itself; end it if it takes too long."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _read_line(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def _file_positions() -> dict[int, int]:
    """Return the positions of open regular files."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            if entry.is_file():
                found[int(entry.name)] = os.lseek(int(entry.name), 0, os.SEEK_CUR)
    return found


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNCHANGED = TrialPlan(name="unchanged", kind="unchanged")


class _Ended(BaseException):
    """Leaves the statements of the script with the result of a trial."""

    def __init__(self, result: TrialResult | None) -> None:
        self.result = result


@dataclass
class Snapshot:
    """What a step changes until its backward pass is over, as it was before the model was called."""

    randoms: list[Any]  # before the batch was made, and before the model was called
    buffers: list[tuple[Tensor, Tensor]]
    gradients: list[tuple[Tensor, Tensor | None]]

    @classmethod
    def take(cls, bus: HookBus, model: nn.Module, earlier: Any) -> Snapshot:
        """Copy the state of a model that is about to be called."""
        now = capture_random_state()
        with bus.unobserved():
            buffers = [(one, one.detach().clone()) for one in model.buffers()]
            grads = [(p, None if p.grad is None else p.grad.clone()) for p in bus.parameters]
        return cls([now] if earlier is None else [earlier, now], buffers, grads)

    def restore(self, bus: HookBus, random: Any) -> None:
        """Put the state back."""
        with bus.unobserved():
            for buffer, before in self.buffers:
                buffer.copy_(before)
            for parameter, grad in self.gradients:
                parameter.grad = None if grad is None else grad.clone()
        restore_random_state(random)


@dataclass
class HeldStep:
    """A step that can be repeated; ``make`` returns the trial of a plan, which ends by a function."""

    bus: HookBus
    before: Snapshot
    make: Callable[[TrialPlan, Callable[[TrialResult], NoReturn]], Any]
    _statements: CodeType | None = None
    _variables: dict[str, Any] | None = None
    _random: Any = None

    def find(self, loss: float, older: list[FrameType]) -> bool:
        """Find statements whose repeat calls a module and has the same bad end; return whether any do.

        A function that only starts the backward pass repeats nothing that a trial can change. ``older`` are
        the frames that ran when the step began: of these only the body of a loop is repeated.
        """
        for code, variables in _steps(sys._getframe(1), older):
            for random in self.before.randoms:
                self._statements, self._variables, self._random = code, variables, random
                if self._repeats(loss):
                    return True
        return False

    def _repeats(self, loss: float) -> bool:
        called = list[nn.Module]()
        hook = register_module_forward_pre_hook(lambda module, _: called.append(module))
        found = self.run(_UNCHANGED)
        hook.remove()
        same = found is not None and not found.trial.good and _is_same(found.trial.loss, loss)
        return same and bool(called)

    def run(self, trial: TrialPlan) -> TrialResult | None:
        """Run one trial in place; None if it did not end in its backward pass."""
        scale = self.bus.scale
        self.before.restore(self.bus, self._random)
        trying = self.make(trial, _end)
        self.bus.only(trying)
        self.bus.listen(self)
        space = dict(self._variables or {})
        try:
            trying.begin(None, ())
            exec(self._statements or "", space)  # noqa: S102 - the user's own script
            space["_halfguard_step"]()
        except _Ended as ended:
            return ended.result
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None
        finally:
            trying.changes.close()
            if self.bus.scaler is not None and self.bus.scaler._scale is not None:
                with self.bus.unobserved():
                    self.bus.scaler._scale.fill_(scale)
        return None

    def on_stepping(self, _optimizer: Any) -> None:
        """Give up: weights would change."""
        raise _Ended(None)


def _end(result: TrialResult) -> NoReturn:
    raise _Ended(result)


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def running_frames() -> list[FrameType]:
    """Return the frames that run now, the innermost first."""
    found, frame = [], sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        found.append(frame)
    return found


def _steps(
    frame: FrameType | None, older: list[FrameType]
) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield the statements around a backward pass that runs now, with their variables."""
    known = set(map(id, older))
    while frame is not None:
        name, is_older = frame.f_globals.get("__name__", ""), id(frame) in known
        if not name.startswith(("torch.", "halfguard.")):
            code = _statements_of(frame, in_loop=is_older)
            if code is not None:
                yield code, {**frame.f_globals, **frame.f_locals}
                if is_older:
                    return
        frame = frame.f_back


def _statements_of(frame: FrameType, *, in_loop: bool) -> CodeType | None:
    """Compile the body of the loop around the line of a frame, or of its function, up to that line."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (*_SCOPES, ast.For, ast.While))
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    holder: Any = max(around, key=lambda node: node.lineno, default=tree)
    if in_loop and not isinstance(holder, ast.For | ast.While):
        return None
    step: Any = ast.parse("def _halfguard_step():\n    for _ in (0,):\n        pass").body[0]
    step.body[0].body = [statement for statement in holder.body if statement.lineno <= line]
    # What the body assigns had a value before.
    stored = {
        node.id
        for node in ast.walk(step)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    step.body.insert(0, ast.Global(names=sorted(stored)))
    try:
        return compile(ast.fix_missing_locations(ast.Module([step], [])), path, "exec")
    except (SyntaxError, ValueError):
        return None
