"""The bad step, repeated in place, where its process cannot be copied: with an accelerator, or other threads.

The statements of the script from the beginning of the loop's body, or of the function, up to the backward
pass are run again with the variables that they had. Before each trial gradients, buffers and random state are
put back. The first repeat changes nothing, and has to end as the step did, with the same loss: a body that
fetches another batch, or steps an optimizer, cannot be repeated, and nothing is claimed of it.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NoReturn

from torch import Tensor, nn

from halfguard.investigation.bus import HookBus
from halfguard.investigation.passes import TrialPlan, TrialResult
from halfguard.step.random_state import capture_random_state, restore_random_state

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
        """Find statements of the script whose repeat has the same bad end; return whether there are any.

        ``older`` are the frames that ran when the step began: of these only the body of a loop is repeated.
        """
        for code, variables in _steps(sys._getframe(1), older):
            for random in self.before.randoms:
                self._statements, self._variables, self._random = code, variables, random
                found = self.run(_UNCHANGED)
                if found is not None and not found.trial.good and _is_same(found.trial.loss, loss):
                    return True
        return False

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
