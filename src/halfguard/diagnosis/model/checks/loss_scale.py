"""The loss scaler: missing, disabled, not saved, of the wrong kind, too large for the loss, or disturbed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from halfguard.diagnosis.model.forward import loss_in
from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.errors import UsageError
from halfguard.formats import FP16
from halfguard.records.finding import Finding

_SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
_DEPTH = 3  # levels of nested mappings to search; Lightning's checkpoint needs two
_MANY = 0.01  # of the gradients that are not 0


def check_hg309(setup: TrainingSetup) -> Iterator[Finding]:
    """Search the checkpoint for the scaler's state, if a loss scale is in use.

    A resumed run then starts at scale 65536 instead of the saved run's scale: steps overflow, or the loss
    spikes.
    """
    if setup.checkpoint is None or not setup.scaler_enabled:
        return
    source = setup.checkpoint
    name = "the checkpoint" if isinstance(source, Mapping) else str(source)
    is_folder = not isinstance(source, Mapping) and Path(source).is_dir()
    saved = _in_folder(Path(source)) if is_folder else _in_mapping(_load(source))
    has_optimizer, has_scaler = saved
    if not has_optimizer or has_scaler:
        return
    yield Finding(
        code="HG309",
        severity="error",
        message=f"{name} contains the optimizer state but not the scaler state.",
        subject=name,
        why=("A resumed run starts again at the initial scale, so its first steps may overflow."),
        cure='torch.save({**checkpoint, "scaler": scaler.state_dict()}, path)  '
        '# and on resume scaler.load_state_dict(checkpoint["scaler"])',
    )


def _in_folder(folder: Path) -> tuple[bool, bool]:
    """Return whether a folder of Trainer or Accelerate has the optimizer's state, and the scaler's."""
    return any(folder.glob("optimizer*")), any(folder.glob("scaler*"))


def _in_mapping(saved: Any) -> tuple[bool, bool]:
    parts = list(_mappings(saved, _DEPTH))
    has_optimizer = any({"state", "param_groups"} <= part.keys() for part in parts)
    return has_optimizer, any(part.keys() >= _SCALER for part in parts)


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
        if depth:
            for part in value.values():
                yield from _mappings(part, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from _mappings(part, depth - 1)


def _load(source: Any) -> Any:
    if isinstance(source, Mapping) or Path(source).suffix == ".safetensors":
        return source
    try:
        return torch.load(source, map_location="meta", weights_only=True)  # keys, no data
    except Exception as error:
        raise UsageError(
            f"The checkpoint {str(source)!r} cannot be read without running code from it: "
            f"{str(error).splitlines()[0]}",
            cure="If you trust it, load it yourself and pass the mapping: "
            "checkpoint=torch.load(path, weights_only=False).",
        ) from error


def check_hg214(setup: TrainingSetup) -> Iterator[Finding]:
    """Find an FSDP1 wrapper in a setup whose scaler is not a ShardedGradScaler.

    With FSDP1 each rank has its shard of the gradients as plain tensors, and a plain scaler checks only
    those: one rank finds an overflow and skips the step, the others apply it, and their scales diverge. With
    FSDP2 (``fully_shard``) gradients are DTensors, so the plain scaler checks all ranks and is correct.
    """
    sharded = is_a(setup.scaler, "ShardedGradScaler", "torch")
    if setup.model is None or not setup.scaler_enabled or sharded:
        return
    for name, module in setup.model.named_modules():
        if is_a(module, "FullyShardedDataParallel", "torch"):
            yield Finding(
                code="HG214",
                severity="error",
                message=(
                    f"{name or 'the model'} is sharded by FSDP1, but the scaler is a plain "
                    f"{type(setup.scaler).__name__}."
                ),
                subject=name or None,
                why=(
                    "It detects overflows only in its own shard. One rank may skip a step that "
                    "the others apply, so their weights and scales diverge."
                ),
                cure="from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
                f'scaler = ShardedGradScaler("{setup.device_type}")',
            )
            return


def check_hg207(setup: TrainingSetup) -> Iterator[Finding]:
    """Find FP16 forward passes in training without a scaler; HD113 reports a disabled scaler.

    With a loss, the gradients of the batch are measured with and without a scale: if hardly any are lost, it
    is a note. Without a loss it is a problem under autocast, since torch's recipe for FP16 includes the
    scaler. For FP16 weights, which GradScaler refuses, it is a note.
    """
    if not setup.trains_through_fp16 or not setup.for_training or setup.scaler is not None:
        return
    yield Finding(
        code="HG207",
        severity="error" if _is_problem(setup) else "note",
        message=f"{describe_fp16(setup)}, but there is no loss scaler.{_describe_lost(setup)}",
        subject="scaler",
        why="Gradients below 3e-8 silently become 0 in FP16, so layers stop learning.",
        cure=setup.advice.scaler,
    )


def check_hg115(setup: TrainingSetup) -> Iterator[Finding]:
    """Find a float16 loss with a scale that float16 cannot hold: its gradient is the scale itself.

    HD121 reports a loss that FSDP2 has rounded to float16.
    """
    if setup.forward is None or setup.forward.rounded or not setup.scaler_enabled:
        return
    loss, scaler = loss_in(setup.forward.result), setup.scaler
    if loss is None or loss.dtype is not torch.float16 or loss.dim() or scaler is None:
        return
    scale = scaler.get_scale()
    if scale <= FP16.largest:
        return
    yield Finding(
        code="HG115",
        message=f"the loss is float16, and the loss scale of {scale:,.0f} is Inf in float16.",
        subject="loss",
        why="The gradient of a loss is the loss scale, in the dtype of the loss. The first step is skipped, "
        "and the scale can never exceed 32,768. Squares and sums in the loss overflow at 65,504.",
        cure="Compute the loss in float32: loss_fn(output.float(), target)",
    )


def _is_problem(setup: TrainingSetup) -> bool:
    if setup.gradients is not None:
        return setup.gradients.lost >= _MANY
    return torch.float16 not in setup.trained_dtypes


def _describe_lost(setup: TrainingSetup) -> str:
    if setup.gradients is None:
        return ""
    return (
        f" In this batch, {setup.gradients.lost:.1%} of the gradients are 0 that would not be 0 "
        "with a loss scale."
    )


def describe_fp16(setup: TrainingSetup) -> str:
    """Return the beginning of a sentence: the part of the forward pass that runs in FP16."""
    precision = setup.precision or ""
    if precision.startswith("fp16"):
        return f"the forward pass runs in {precision}"
    return "a part of the forward pass runs in float16"


def check_hd113(setup: TrainingSetup) -> Iterator[Finding]:
    """Find a disabled scaler where FP16 needs one.

    ``GradScaler()`` means CUDA. On a machine without CUDA, torch warns once, and the scaler does nothing:
    ``scale(loss)`` returns the loss.
    """
    if setup.scaler is None or setup.scaler_enabled or not setup.trains_through_fp16:
        return
    absent = setup.scaler._device == "cuda" and not torch.cuda.is_available()
    yield Finding(
        code="HD113",
        severity="error",
        message=f"{describe_fp16(setup)}, but the loss scaler is disabled.",
        subject="scaler",
        why="It was created for CUDA, which is not available, so torch warns and disables it."
        if absent
        else "It was created with enabled=False.",
        cure=f'scaler = torch.amp.GradScaler("{setup.device_type}")',
    )


def check_hg307(setup: TrainingSetup) -> Iterator[Finding]:
    """Find anomaly detection that is on in torch or in the framework."""
    on = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if not setup.scaler_enabled or not (on or setup.detects_anomalies):
        return
    yield Finding(
        code="HG307",
        message="autograd's anomaly detection is enabled together with a loss scaler.",
        subject="detect_anomaly",
        why=(
            "A scaler calibrates by skipping steps that overflow. Anomaly detection raises an "
            "error in these steps although the run is healthy. It also slows down every step."
        ),
        cure="trainer = Trainer(detect_anomaly=False)"
        if setup.detects_anomalies
        else "torch.autograd.set_detect_anomaly(False)",
    )
