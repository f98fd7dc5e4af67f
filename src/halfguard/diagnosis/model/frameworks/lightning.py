"""Lightning: the Trainer's precision plugin converts the model and wraps the training step.

On a CPU a Trainer replaces ``precision="16-mixed"`` by ``"bf16-mixed"`` with a warning and does not keep the
request (Lightning 2.6). So the request must be passed again: ``doctor(..., precision="16-mixed")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import resolve_precision
from halfguard.diagnosis.model.frameworks.inputs import (
    DoctorInputs,
    conversion_line,
    explain_difference,
    is_a,
    move_batch,
    patch,
)
from halfguard.diagnosis.model.measured_precision import MeasuredPrecision
from halfguard.diagnosis.model.training_setup import Advice, TrainingSetup

_FP16_ON_CPU = (
    "from lightning.pytorch.plugins import MixedPrecision\n"
    'trainer = Trainer(accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", '
    'scaler=torch.amp.GradScaler("cpu"))])'
)
_SETTINGS = {
    "fp32": "32-true",
    "fp16-mixed": "16-mixed",
    "bf16-mixed": "bf16-mixed",
    "fp16-true": "16-true",
    "bf16-true": "bf16-true",
    "fp16-weights": "16-true",
    "fp64": "64-true",
}

_MANUAL = "With manual optimization, training_step() would change weights."

# Hooks that may set attributes, with their arguments, in the order in which a Trainer calls them.
_BEFORE_TRAINING = {
    "prepare_data": "",
    "setup": '"fit"',
    "configure_model": "",
    "on_fit_start": "",
    "on_train_start": "",
    "on_train_epoch_start": "",
}


def recognise(trainer: object) -> bool:
    """Return whether it is a Lightning Trainer, from either package."""
    return is_a(trainer, "Trainer", "lightning", "pytorch_lightning")


def read_setup(trainer: Any, inputs: DoctorInputs) -> TrainingSetup:
    """Return the setup of a LightningModule and its Trainer."""
    module, plugin = inputs.require_model("a Lightning Trainer"), trainer.precision_plugin
    device = trainer.strategy.root_device
    manual = inputs.loss is None and not module.automatic_optimization

    @contextmanager
    def as_trained() -> Iterator[None]:
        plugin.convert_module(module.to(device))
        yield

    def run_forward() -> Any:
        batch = plugin.convert_input(move_batch(inputs.copied_batch, device))
        with plugin.train_step_context():
            return _training_step(trainer, inputs, batch)

    return TrainingSetup(
        framework="Lightning",
        model=module,
        optimizers=inputs.optimizers or tuple(trainer.optimizers),
        scaler=inputs.scaler or getattr(plugin, "scaler", None),
        asked=_requested(trainer.precision, device.type, inputs.precision),
        run_forward=run_forward if inputs.batch is not None and not manual else None,
        as_trained=as_trained,
        advise=partial(_advise, device.type, module),
        checkpoint=inputs.checkpoint,
        detects_anomalies=bool(getattr(trainer, "_detect_anomaly", False)),
        not_run=_MANUAL if inputs.batch is not None and manual else "",
    )


def _requested(configured: str, device: str, passed: Any) -> str | None:
    """Return the precision passed to doctor, else the Trainer's, unless the Trainer may have replaced it."""
    if passed is not None:
        return resolve_precision(passed)
    return None if device == "cpu" and configured == "bf16-mixed" else resolve_precision(configured)


def _training_step(trainer: Any, inputs: DoctorInputs, batch: Any) -> Any:
    module: Any = inputs.model
    if inputs.loss is not None:
        return inputs.loss(module, batch)
    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    # Nothing is logged, and the module finds its trainer as in training.
    silent = dict.fromkeys(("log", "log_dict"), lambda *_args, **_kwargs: None)
    with patch(module, **silent, _trainer=trainer):
        return module.training_step(batch, 0) if takes_index else module.training_step(batch)


def _advise(device: str, module: Any, asked: str | None, measured: MeasuredPrecision) -> Advice:
    on_cpu = device == "cpu" and asked == "fp16-mixed"
    setting = (
        _FP16_ON_CPU if on_cpu else f'trainer = Trainer(precision="{_SETTINGS.get(asked or "")}")'
    )
    return Advice(
        why=_why(asked, measured, replaced=on_cpu and measured.name == "bf16-mixed"),
        precision=conversion_line(asked, measured) or setting,
        scaler=_FP16_ON_CPU if device == "cpu" else 'trainer = Trainer(precision="16-mixed")',
        setup_calls="\n".join(_hook_calls(module)),
    )


def _hook_calls(module: Any) -> Iterator[str]:
    """Yield calls of the module's hooks that a Trainer runs before a training step and doctor does not."""
    kinds = [kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule"]
    for name, arguments in _BEFORE_TRAINING.items() if kinds else ():
        if getattr(type(module), name, None) is not getattr(kinds[0], name, None):
            yield f"model.{name}({arguments})  # called by Lightning before training, not by doctor()"


def _why(asked: str | None, measured: MeasuredPrecision, *, replaced: bool) -> str:
    if replaced:
        return "On a CPU, Lightning runs 16-mixed as bf16-mixed."
    if asked is None:
        return (
            "On a CPU, Lightning runs 16-mixed as bf16-mixed and does not keep the request: "
            'pass precision="16-mixed" to doctor() if you requested it.'
        )
    return explain_difference(asked, measured)
