"""Load the state of an incident into the model and the random generators of a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.errors import HalfguardError, RecordError, UsageError
from halfguard.incident import Incident, decode
from halfguard.replaying.samples import map_tensors
from halfguard.step.parameters import without_wrappers
from halfguard.step.random_state import restore_random_state
from halfguard.trials.plans import apply_plan
from halfguard.workload import Workload

_MAX_PLAN_BYTES = 2**20
_LONGEST = 600  # characters of an error


def load_model(workload: Workload, incident: Incident) -> nn.Module:
    """Return the workload's model with plan, modes and weights of the incident, on its device type."""
    record = incident.record
    model = workload.model.to("cpu") if record.device == "cpu" else workload.model
    plan = record.config.get("plan")
    if isinstance(plan, str):
        _apply_plan(model, plan)
    if record.weights:
        _load_weights(model, incident)
    evaluating = {without_wrappers(name) for name in record.evaluating}
    for name, module in model.named_modules():
        module.training = without_wrappers(name) not in evaluating
    return model


def _apply_plan(model: nn.Module, plan: str) -> None:
    try:
        if not _is_small_file(Path(plan)):
            raise RecordError("the file does not exist or is far too large")
        apply_plan(model, plan)
    except HalfguardError as error:
        raise UsageError(
            f"The original step used the plan {plan!r}, which cannot be applied: {error.message}.",
            cure="Run replay on a machine that has this file at the same path.",
        ) from error


def _is_small_file(path: Path) -> bool:
    # The path may come from a stranger: it may lead to an endless device file.
    try:
        return path.is_file() and path.stat().st_size < _MAX_PLAN_BYTES
    except (OSError, ValueError):
        return False


def _load_weights(model: nn.Module, incident: Incident) -> None:
    held = incident.tensors("model.")
    names = {without_wrappers(name): name for name in model.state_dict()}
    state = {names.get(without_wrappers(name), name): tensor for name, tensor in held.items()}
    parameters = dict(model.named_parameters())
    for name, tensor in state.items():
        if name in parameters and parameters[name].dtype != tensor.dtype:
            # fp16-weights: the job was described in float32 and made half afterwards.
            parameters[name].data = parameters[name].data.to(tensor.dtype)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        revision = incident.record.git.get("revision", "unknown")
        text = " ".join(str(error).split())
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
        raise UsageError(
            f"The model of the ENTRY does not match the incident: {text}",
            cure="Specify the function that builds the trained model. The git revision of the run "
            f"is {revision}.",
        ) from error


def raise_if_private(incident: Incident) -> None:
    """Raise if the batch of the incident was not stored, because it is private."""
    if any(micro.private for micro in incident.record.micro_batches):
        raise UsageError(
            f"{incident.folder} was saved with privacy: true. It contains no batch, so its step "
            "cannot be repeated.",
            cure=(
                "It still contains the cause, evidence, loss scale and gradient norms, and the dtypes, "
                "shapes and statistics of the batch. To replay such a step, reproduce it with privacy: "
                "false, on data that may be stored."
            ),
        )


def load_batches(incident: Incident, device: torch.device) -> tuple[list[Any], list[Any]]:
    """Return the micro-batches, on the device, and the random state before each."""
    tensors = {f"batch.{name}": tensor for name, tensor in incident.tensors("batch.").items()}
    tensors |= {f"rng.{name}": tensor for name, tensor in incident.tensors("rng.").items()}
    micro_batches = incident.record.micro_batches
    if not micro_batches or all(m.batch is None and m.rng is None for m in micro_batches):
        raise UsageError(
            f"{incident.folder} contains no batch, so its step cannot be repeated.",
            cure=(
                "Use guard.step(loss_fn, batch), or pass the batch: guard.backward(loss, batch=batch). The "
                "incident still contains the cause, scale and gradient norms."
            ),
        )

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    batches = [map_tensors(decode(micro.batch, tensors), move) for micro in micro_batches]
    states = [decode(micro.rng, tensors) for micro in micro_batches]
    return batches, states


def restore_generators(state: Any) -> None:
    """Restore the generators to the state before a micro-batch."""
    if state is None:
        return
    try:
        restore_random_state(state)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise RecordError(f"The random state in the incident is damaged: {error!r}.") from error
