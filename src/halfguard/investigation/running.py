"""The user's program inside a pass: seeds, arguments, and how it ended."""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import random
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from halfguard.investigation.passes import Ended, PassPlan, Target
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
    _seed()
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


def _seed() -> None:
    """Seed the generators, for scripts that do not; those that do are not disturbed."""
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    with contextlib.suppress(ImportError):
        import numpy as np  # noqa: PLC0415

        np.random.seed(_SEED)


@contextlib.contextmanager
def _emulated() -> Iterator[None]:
    """Let ``torch.autocast("cuda")`` and its scaler work on a CPU, by CUDA's rules."""
    original: Any = torch.amp.GradScaler.__init__

    def __init__(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(scaler, "cpu" if device == "cuda" else device, *args, **kwargs)

    setattr(torch.amp.GradScaler, __init__.__name__, __init__)
    with emulate_autocast("cuda"):
        for device in ("cpu", "cuda"):  # on inside the script's own regions only
            torch.set_autocast_enabled(device, False)
        yield
