"""Lightning: the Trainer's precision plugin converts the model and wraps the training step.

On a CPU a Trainer turns ``precision="16-mixed"`` into ``"bf16-mixed"`` with a warning and forgets what it
was asked for (Lightning 2.6). So the request must be told again: ``doctor(..., precision="16-mixed")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import asked_for
from halfguard.diagnosis.model.frameworks.conversions import conversion, difference
from halfguard.diagnosis.model.frameworks.inputs import Given, is_a, moved, replaced
from halfguard.diagnosis.model.measured_precision import Ran
from halfguard.diagnosis.model.subject import Advice, Subject
from halfguard.errors import UsageError

_ON_CPU = (
    "from lightning.pytorch.plugins import MixedPrecision\n"
    'trainer = Trainer(accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", '
    'scaler=torch.amp.GradScaler("cpu"))])'
)
_WORDS = {
    "fp32": "32-true",
    "fp16-mixed": "16-mixed",
    "bf16-mixed": "bf16-mixed",
    "fp16-true": "16-true",
    "bf16-true": "bf16-true",
    "fp16-weights": "16-true",
    "fp64": "64-true",
}

# What sets attributes up, in the order in which a Trainer calls it.
_BEFORE_TRAINING = {
    "prepare_data": "",
    "setup": '"fit"',
    "configure_model": "",
    "on_fit_start": "",
    "on_train_start": "",
    "on_train_epoch_start": "",
}


def recognise(trainer: object) -> bool:
    """Whether it is a Lightning Trainer, of either package name."""
    return is_a(trainer, "Trainer", "lightning", "pytorch_lightning")


def subject(trainer: Any, given: Given) -> Subject:
    """The setup of a LightningModule under a Trainer."""
    module, plugin = given.needed_model("a Lightning Trainer"), trainer.precision_plugin
    device = trainer.strategy.root_device
    if given.batch is not None and given.loss is None and not module.automatic_optimization:
        raise UsageError(
            f"{type(module).__name__} optimizes by hand: its training_step() would change weights, "
            "so doctor() does not run it.",
            cure="Pass loss=: a function of the module and a batch that returns a loss.",
        )

    @contextmanager
    def as_trained() -> Iterator[None]:
        plugin.convert_module(module.to(device))
        yield

    def step() -> Any:
        batch = plugin.convert_input(moved(given.copied_batch, device))
        with plugin.train_step_context():
            return _training_step(trainer, given, batch)

    return Subject(
        framework="Lightning",
        model=module,
        optimizers=given.optimizers or tuple(trainer.optimizers),
        scaler=given.scaler or getattr(plugin, "scaler", None),
        asked=_asked(trainer.precision, device.type, given.precision),
        step=step if given.batch is not None else None,
        as_trained=as_trained,
        advise=partial(_advise, device.type, module),
        checkpoint=given.checkpoint,
        detects_anomalies=bool(getattr(trainer, "_detect_anomaly", False)),
    )


def _asked(configured: str, device: str, told: Any) -> str | None:
    """The request: as told, or as the Trainer has it, unless it may have changed it."""
    if told is not None:
        return asked_for(told)
    return None if device == "cpu" and configured == "bf16-mixed" else asked_for(configured)


def _training_step(trainer: Any, given: Given, batch: Any) -> Any:
    module: Any = given.model
    if given.loss is not None:
        return given.loss(module, batch)
    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    # Nothing is logged, and the module may ask for its trainer as it does in training.
    silent = {"log": _nothing, "log_dict": _nothing, "_trainer": trainer}
    with replaced(module, **silent):
        return module.training_step(batch, 0) if takes_index else module.training_step(batch)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _advise(device: str, module: Any, asked: str | None, ran: Ran) -> Advice:
    on_cpu = device == "cpu" and asked == "fp16-mixed"
    setting = _ON_CPU if on_cpu else f'trainer = Trainer(precision="{_WORDS.get(asked or "")}")'
    return Advice(
        why=_why(asked, ran, turned=on_cpu and ran.name == "bf16-mixed"),
        precision=conversion(asked, ran) or setting,
        scaler=_ON_CPU if device == "cpu" else 'trainer = Trainer(precision="16-mixed")',
        raised="\n".join(_hooks(module)),
    )


def _hooks(module: Any) -> Iterator[str]:
    """Calls of the module's own hooks, which a Trainer runs before a training step and doctor does not."""
    kinds = [kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule"]
    for name, arguments in _BEFORE_TRAINING.items() if kinds else ():
        if getattr(type(module), name, None) is not getattr(kinds[0], name, None):
            yield f"model.{name}({arguments})  # Lightning calls it before training, doctor() does not"


def _why(asked: str | None, ran: Ran, *, turned: bool) -> str:
    if turned:
        return "On a CPU, Lightning runs 16-mixed as bf16-mixed."
    if asked is None:
        return (
            "On a CPU, Lightning runs 16-mixed as bf16-mixed and forgets the request: "
            'pass precision="16-mixed" to doctor() if that is what you asked for.'
        )
    return difference(asked, ran)
