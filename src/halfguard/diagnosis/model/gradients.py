"""The gradients of one batch, measured at a loss scale of 1 and at a higher one.

A gradient that is 0 at scale 1 and not 0 at the higher scale is lost in FP16. Both are taken from one forward
pass, so nothing else differs. Weights and their ``.grad`` are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from halfguard.diagnosis.model.forward import find_graph_leaves, loss_in, quiet
from halfguard.diagnosis.model.repeats import can_repeat
from halfguard.diagnosis.model.restore_model import restore_afterwards
from halfguard.diagnosis.model.training_setup import MeasuredGradients, TrainingSetup

_SCALES = (4096.0, 64.0)  # the first at which all gradients are finite is used


def add_gradients(setup: TrainingSetup) -> TrainingSetup:
    """Return the setup with the gradients of the batch, if a check needs them."""
    unscaled = setup.trains_through_fp16 and setup.scaler is None
    if not setup.for_training or not (setup.trained_in_half or unscaled):
        return setup
    return replace(setup, gradients=measure_gradients(setup))


def measure_gradients(setup: TrainingSetup) -> MeasuredGradients | None:
    """Run one more forward pass and two backward passes; None if there is no loss, or it cannot be done."""
    model, run = setup.model, setup.run_forward
    trained = [one.weight for one in setup.parameters if one.weight.requires_grad]
    if not can_repeat(setup) or model is None or run is None or not trained:
        return None
    if any(weight._backward_hooks for weight in trained):  # the user's code, not to be called here
        return None
    with (
        restore_afterwards(model),
        quiet(eager=True),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        try:
            result = run()
            loss = loss_in(result)
            if loss is None or loss.numel() != 1 or loss.grad_fn is None:
                return None
            found = _compare(loss, trained)
            # A reentrant checkpoint hides the weights inside it.
            hidden = not find_graph_leaves(result).complete
            return None if found and hidden and len(found.of) < len(trained) else found
        except Exception:  # noqa: BLE001  a graph that cannot be walked this way is no finding
            return None


def _compare(loss: Tensor, trained: Sequence[Tensor]) -> MeasuredGradients | None:
    plain = _gradients(loss, trained, 1.0)
    for scale in _SCALES:
        scaled = _gradients(loss, trained, scale)
        if all(bool(g.isfinite().all()) for g in scaled if g is not None):
            break
    else:
        return None
    pairs = [
        (one, other)
        for one, other in zip(plain, scaled, strict=True)
        if one is not None and other is not None
    ]
    there = sum(int(other.count_nonzero()) for _, other in pairs)
    lost = sum(int(((one == 0) & (other != 0)).sum()) for one, other in pairs)
    found = {
        id(weight): gradient.float() / scale
        for weight, gradient in zip(trained, scaled, strict=True)
        if gradient is not None
    }
    return MeasuredGradients(found, lost / there if there else 0.0)


def _gradients(loss: Tensor, trained: Sequence[Tensor], scale: float) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(
        loss * scale if loss.dtype is not torch.float16 else loss.float() * scale,
        trained,
        retain_graph=True,
        allow_unused=True,
    )
