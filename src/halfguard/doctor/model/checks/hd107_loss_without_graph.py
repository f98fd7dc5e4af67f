"""HD107: the loss is a number without a graph, so that no parameter gets a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from halfguard.doctor.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Look at what the forward pass returned, where it is a loss and something is trained."""
    if subject.forward is None or not subject.trains or not subject.held:
        return
    loss = _loss(subject.forward.result)
    if loss is None or loss.numel() != 1 or loss.grad_fn is not None:
        return
    yield Finding(
        code="HD107",
        severity="error",
        message="the loss does not depend on any parameter: it has no graph.",
        subject="loss",
        why="It was rebuilt from a number or detached. backward() raises, or, if it was given "
        'requires_grad, the scaler says "No inf checks were recorded".',
        cure="return loss  # the tensor itself, without .item(), .detach() or torch.tensor(loss)",
    )


def _loss(result: Any) -> Tensor | None:
    if isinstance(result, Mapping):
        result = result.get("loss")
    return result if isinstance(result, Tensor) else None
