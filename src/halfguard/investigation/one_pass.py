"""The process of one pass: put the sensors on torch, run the user's program with its seeds, and answer."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pkgutil
import random
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from halfguard.errors import HalfguardError
from halfguard.investigation.bus import HookBus
from halfguard.investigation.inspecting import Inspecting
from halfguard.investigation.passes import Ended, PassPlan, PassResult, Target, TrialResult, leave
from halfguard.investigation.sensing import Sensing
from halfguard.investigation.tracking import Tracking
from halfguard.investigation.trying import FP32, Trying, force_fp32
from halfguard.investigation.working_copy import Surroundings
from halfguard.precision.emulation import emulate_autocast

_SEED = 0


def run_target(target: Target) -> None:
    """Run a script or a module as ``__main__``. Tracking looks for the user's lines below this call."""
    if target.is_module:
        runpy.run_module(target.name, run_name="__main__", alter_sys=True)
    else:
        _run_script(os.path.abspath(target.name))  # noqa: PTH100 - links stay, as in Python


def _run_script(path: str) -> None:
    """Run a file as Python does: by its absolute path, so that lines are found after ``os.chdir``."""
    if pkgutil.get_importer(path) is not None:  # an archive
        runpy.run_path(path, run_name="__main__")
        return
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 - the user's own script


def run_to_the_end(plan: PassPlan) -> tuple[str, Ended]:
    """Run the program; return its error, if it raised one, and how it ended."""
    target = plan.target
    os.chdir(plan.folder)
    os.environ["PWD"] = plan.folder
    sys.argv = [target.name, *target.arguments]
    sys.path[0] = plan.folder if target.is_module else str(Path(target.name).resolve().parent)
    _seed(plan.seed)
    try:
        with _emulated() if plan.emulate else contextlib.nullcontext():
            run_target(target)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return "", "exited"
        return f"SystemExit: {leaving.code}", "crashed"
    except BaseException as error:  # noqa: BLE001 - the user's own, an interrupt included
        traceback.print_exc()
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text}", "crashed"
    return "", "finished"


def _seed(shift: int) -> None:
    """Seed the generators, for scripts that do not; the seeds of those that do are shifted."""
    owners: list[tuple[Any, str]] = [(random, "seed"), (torch, "manual_seed")]
    with contextlib.suppress(ImportError):
        import numpy as np  # noqa: PLC0415

        owners.append((np.random, "seed"))
    for owner, name in owners:
        set_seed = getattr(owner, name)
        set_seed(_SEED + shift)
        if shift:
            setattr(owner, name, functools.partial(_set_shifted, set_seed, shift))


def _set_shifted(set_seed: Callable[..., Any], shift: int, *given: Any, **named: Any) -> Any:
    """Set another seed than the one that is given."""
    given = tuple(one + shift if isinstance(one, int) else one for one in given)
    named = {key: one + shift if isinstance(one, int) else one for key, one in named.items()}
    return set_seed(*given, **named)


@contextlib.contextmanager
def _emulated() -> Iterator[None]:
    """Let ``torch.autocast("cuda")`` work on a CPU, by CUDA's rules; the bus does so with its scaler."""
    with emulate_autocast("cuda"):
        for device in ("cpu", "cuda"):  # on inside the script's own regions only
            torch.set_autocast_enabled(device, False)
        yield


def run_pass(plan: PassPlan) -> NoReturn:
    """Run one pass in this process, which ends with it."""
    sys.dont_write_bytecode = True
    # What workers leave behind when a pass ends is removed with its other files.
    multiprocessing.current_process()._config["tempdir"] = str(Path(plan.answer).parent)  # type: ignore[attr-defined]
    bus, surroundings = HookBus(alone=plan.alone, emulate=plan.emulate), Surroundings(plan)
    try:
        bus.install()
        surroundings.watch()
        _listen(plan, bus, surroundings)
    except HalfguardError as refused:
        leave(plan.answer, PassResult(error=str(refused)))
    bus.publish("finished", *run_to_the_end(plan))
    raise AssertionError  # a listener has left the process


def _listen(plan: PassPlan, bus: HookBus, surroundings: Surroundings) -> None:
    bus.listen(surroundings)
    if plan.in_fp32:
        torch.compiler.set_stance("force_eager")
        bus.has_scalers = False
        force_fp32(bus, bus.changes)
    code = run_target.__code__
    if plan.kind == "inspect":
        Inspecting(plan, bus, code)
    elif plan.event is None:
        Sensing(plan, bus, surroundings)
    elif plan.kind == "track":
        Tracking(plan, bus, plan.event, code).prepare()
    else:

        def send(result: TrialResult) -> NoReturn:
            found = PassResult(ended="event", trials=(result,), differs_at=trying.differs_at)
            leave(plan.answer, found)

        trying = Trying(plan, bus, plan.event, code, plan.trial or FP32, send)
        trying.prepare()


if __name__ == "__main__":
    run_pass(PassPlan.model_validate_json(sys.stdin.read()))
