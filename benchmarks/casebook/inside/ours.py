"""halfguard's instruments in a program that is not changed: the doctor at its first step, and the guard."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import halfguard as hg
from benchmarks.casebook.inside.hooks import (
    alive,
    on_training_call,
    optimizers,
    optimizers_of,
    weights_are_finite,
    whole_model,
)
from benchmarks.casebook.inside.running import Program
from benchmarks.casebook.results import Alarm
from halfguard.errors import HalfguardError
from halfguard.records.diagnosis import Diagnosis


class Examined(BaseException):
    """The doctor is done: the program need not run on."""


def doctor(program: Program) -> list[Alarm]:
    """Call ``hg.doctor`` before the first training step, with what the program has by then."""
    answers: list[Diagnosis] = []

    def answer(diagnosis: Diagnosis) -> None:
        answers.append(diagnosis)
        raise Examined

    def plain(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scalers = alive(torch.amp.GradScaler)
        with suppress(ImportError):
            from accelerate import Accelerator

            trainers = alive(Accelerator)
        whole = whole_model(model)
        answer(
            hg.doctor(
                whole,
                optimizers_of(whole),
                scaler=scalers[0] if scalers else None,
                precision=None if trainers else requested_precision(),
                loss=lambda model, batch: model(*batch[0], **batch[1]),
                batch=(args, kwargs),
                trainer=trainers[0] if trainers else None,
            )
        )

    framework = _in_frameworks(program.path.read_text("utf-8"), answer)
    if not framework:
        on_training_call(plain)
    program.run()
    if not answers and not isinstance(program.error, Examined):
        return _of_error(program)
    found = [one for diagnosis in answers for one in diagnosis.problems]
    return [
        Alarm(one.code, one.message, _line(program, f"{one.message} {one.why}"), one.subject)
        for one in found
    ]


def _in_frameworks(text: str, answer: Any) -> bool:
    """Put the doctor before the first step of a framework's Trainer, if the program uses one."""
    if "lightning" in text:
        import lightning.pytorch as pl

        class Doctor(pl.Callback):
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, _: int) -> None:
                asked = trainer.precision
                answer(hg.doctor(module, trainer=trainer, precision=asked, batch=batch))

        make = pl.Trainer.__init__

        def with_doctor(self: Any, *args: Any, **options: Any) -> None:
            callbacks = [*(options.pop("callbacks", None) or []), Doctor()]
            make(self, *args, **options, callbacks=callbacks)

        pl.Trainer.__init__ = with_doctor  # type: ignore[method-assign]
        return True
    if re.search(r"\b\w*Trainer\(", text):
        from transformers import Trainer

        step = Trainer.training_step

        def first_examined(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            answer(hg.doctor(trainer=self, batch=inputs))
            return step(self, model, inputs, *args, **kwargs)

        Trainer.training_step = first_examined  # type: ignore[method-assign]
        return True
    return False


def requested_precision() -> str | None:
    """Return what the program asks for by autocast; weights that are half ask for nothing by name."""
    if not torch.is_autocast_enabled("cpu"):
        return None
    half = torch.get_autocast_dtype("cpu") is torch.float16
    return "fp16-mixed" if half else "bf16-mixed"


def guard(program: Program) -> list[Alarm]:
    """Put ``hg.GuardScaler`` in the place of ``torch.amp.GradScaler``, and begin each step for it."""
    folder = Path(tempfile.mkdtemp())
    made: list[Any] = []

    class Guarded(hg.GuardScaler):
        def __init__(self, _device: str = "cpu", init_scale: float = 65536.0, *_: Any, **__: Any):
            super().__init__()
            self.init_scale, self.begun = init_scale, False
            made.append(self)

        def scale(self, outputs: Any) -> Any:
            if self.guard is None:
                self.bind_late()
            self.begun = False
            return super().scale(outputs)

        def bind_late(self) -> None:
            config = {"scale": {"init": self.init_scale}}
            trained = nn.ModuleList([m for m in models if isinstance(m, nn.Module)])
            chosen = trained[0] if len(trained) == 1 else trained
            self.bind(hg.HostedGuard(chosen, optimizers(), config, run_dir=folder))

    models: list[nn.Module] = []

    def begin(model: nn.Module, _args: Any, _kwargs: Any) -> None:
        if not any(model is one for one in models):
            models.append(model)
        for scaler in made:
            if scaler.guard is not None and not scaler.begun:
                scaler.begun = True
                scaler.guard.begin()

    for place in (torch, torch.amp, torch.amp.grad_scaler):
        place.GradScaler = Guarded  # type: ignore[attr-defined, assignment, misc]
    on_training_call(begin)
    program.run()
    program.facts["weights finite"] = weights_are_finite()
    program.facts["guards"] = sum(scaler.guard is not None for scaler in made)
    for scaler in made:
        if scaler.guard is not None:
            with suppress(HalfguardError):
                scaler.guard.close()
    return [*_of_error(program), *_of_journals(folder)]


def _of_error(program: Program) -> list[Alarm]:
    """Return the refusal of halfguard that ended the program; another error is not halfguard's word."""
    error = program.error
    while error is not None and not isinstance(error, HalfguardError):
        error = error.__cause__ or error.__context__
    if error is None:
        return []
    text = str(error)
    return [Alarm(type(error).__name__, text[:300], _line(program, text))]


def _of_journals(folder: Path) -> list[Alarm]:
    alarms: dict[str, Alarm] = {}
    for path in folder.rglob("*.jsonl"):
        for text in path.read_text("utf-8").splitlines():
            row = json.loads(text)
            if row["kind"] == "step" and row["cause"] and not row["routine"]:
                said = row["evidence"] or row["cause"]
                alarms.setdefault(row["cause"], Alarm(row["cause"], said[:300]))
            if row["kind"] == "health":
                alarms.setdefault(row["warning"], Alarm(row["warning"], row["text"][:300]))
    return list(alarms.values())


def _line(program: Program, text: str) -> int | None:
    found = re.search(rf"{re.escape(program.path.name)}:(\d+)", text)
    return int(found[1]) if found else None
