"""Others' instruments: the program itself, anomaly mode, transformers' debug tool, Lightning's check."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from torch import nn

from benchmarks.casebook.inside.hooks import on_training_call, weights_are_finite
from benchmarks.casebook.inside.running import Program
from benchmarks.casebook.results import Alarm

NOT_FINITE = re.compile(r"(?<![\w-])-?(nan|inf)(?!\w)", re.IGNORECASE)
SCALE_GONE = re.compile(r"scale\W{0,6}0(\.0)?(?![.\d])")


def bare(program: Program) -> list[Alarm]:
    """See what a user sees without any instrument: an error, or a number that is not finite."""
    program.run()
    program.facts["weights finite"] = weights_are_finite()
    alarms = []
    if program.error is not None:
        alarms.append(Alarm("crash", repr(program.error)[:200], program.crash_line))
    lines = program.printed().splitlines()
    shown = [line for line in lines if NOT_FINITE.search(line) or SCALE_GONE.search(line)]
    if shown and program.error is None:
        alarms.append(Alarm("printed", shown[0][:200]))
    return alarms


def anomaly(program: Program) -> list[Alarm]:
    """Switch ``torch.autograd.detect_anomaly`` on around the whole program."""
    told: list[str] = []

    def keep(message: Warning | str, *_: Any, **__: Any) -> None:
        told.append(str(message))

    warnings.showwarning = keep
    with torch.autograd.set_detect_anomaly(True):
        program.run()
    return _of_anomaly(program, told)


def _of_anomaly(program: Program, told: list[str]) -> list[Alarm]:
    said = re.search(r"Function '(\w+)' returned nan values", str(program.error))
    if said is None:
        return []
    forward = [text for text in told if "Traceback of forward call" in text]
    own = re.findall(rf'File "{re.escape(str(program.path))}", line (\d+)', "\n".join(forward[-1:]))
    return [Alarm(f"anomaly {said[1]}", str(program.error)[:200], int(own[-1]) if own else None)]


def lightning_anomaly(program: Program) -> list[Alarm]:
    """Pass ``detect_anomaly=True`` to every Lightning Trainer that the program makes."""
    import lightning.pytorch as pl

    told: list[str] = []
    make = pl.Trainer.__init__

    def with_check(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options | {"detect_anomaly": True})

    def keep(message: Warning | str, *_: Any, **__: Any) -> None:
        told.append(str(message))

    warnings.showwarning = keep
    pl.Trainer.__init__ = with_check  # type: ignore[method-assign]
    program.run()
    return _of_anomaly(program, told)


def debug_underflow_overflow(program: Program) -> list[Alarm]:
    """Put transformers' ``DebugUnderflowOverflow`` on every model when it is first called to train."""
    from transformers.debug_utils import DebugUnderflowOverflow

    watched: list[nn.Module] = []

    def watch(model: nn.Module, _args: Any, _kwargs: Any) -> None:
        if not any(model is one for one in watched):
            watched.append(model)
            DebugUnderflowOverflow(model)

    on_training_call(watch)
    program.run()
    if "DebugUnderflowOverflow" not in str(program.error):
        return []
    frames = re.findall(r"^ {18}(\S*) (\w+)$", program.printed(), re.MULTILINE)
    module, kind = frames[-1] if frames else ("", "?")
    return [Alarm(f"overflow in {kind}", str(program.error)[:200], module=module or None)]
