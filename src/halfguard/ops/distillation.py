"""Distillation: learn from a teacher's logits and from labels, even if the teacher's logits overflow.

    kd    = T² · mean_counted KL(softmax(teacher / T) ‖ softmax(student / T))
    ce    = mean_counted -log softmax(student)[target]
    total = kd_weight · kd + ce_weight · ce,   or ce_weight · ce alone if kd is not finite

T² keeps the gradient of kd at the size of ce's at any temperature. Positions whose label is ignored
count in neither term. Everything is computed in float32, from log-softmax: no logit is clamped.

The fallback is decided on the device. Choosing the finite total afterwards is not enough: in the
backward pass 0 * NaN is NaN. So non-finite logits are replaced *before* the KL is computed, and its
result is discarded afterwards. The CE term keeps its weight in the fallback, so its gradient does not
jump. Student logits that are not finite at a counted label make CE non-finite, and that is not hidden.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import widen
from halfguard.ops.losses import cross_entropy


class Distillation(NamedTuple):
    """The parts of a distillation loss, as scalars on the device of the logits."""

    total: Tensor
    kd: Tensor  # 0 where it was not used
    ce: Tensor
    kd_used: Tensor  # bool: False when KD was not finite and total is CE alone


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    target: Tensor,
    *,
    temperature: float,
    kd_weight: float,
    ce_weight: float,
    ignore_index: int = -100,
) -> Distillation:
    """Compute the KL divergence from the teacher plus cross-entropy, or only cross-entropy.

    If the KL divergence is not finite, the loss is the cross-entropy alone. Logits have the shape ``(...,
    classes)``, and ``target`` has the shape ``(...)``. No gradient reaches the teacher.
    """
    _check_inputs(student_logits, teacher_logits, target, temperature)
    classes = student_logits.shape[-1]
    # Cast once for both terms, so that their gradients are added in float32 and rounded once.
    student = widen(student_logits).reshape(-1, classes)
    teacher = widen(teacher_logits).detach().reshape(-1, classes)
    counted = (target != ignore_index).reshape(-1, 1)

    soft_student, student_finite = _log_softmax(student, counted, temperature)
    soft_teacher, teacher_finite = _log_softmax(teacher, counted, temperature)
    divergence = (soft_teacher.exp() * (soft_teacher - soft_student)).masked_fill(~counted, 0.0)
    kd = temperature**2 * divergence.sum() / counted.sum().clamp(min=1)
    kd_used = student_finite & teacher_finite & kd.isfinite()
    kd = kd.masked_fill(~kd_used, 0.0)

    ce = cross_entropy(student, target.reshape(-1), ignore_index)
    return Distillation(kd_weight * kd + ce_weight * ce, kd, ce, kd_used)


def _log_softmax(logits: Tensor, counted: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-softmax(logits / T), bad and ignored logits set to 0, and whether none was bad."""
    scaled = (logits / temperature).masked_fill(~counted, 0.0)
    bad = ~scaled.isfinite()
    return scaled.masked_fill(bad, 0.0).log_softmax(-1), ~bad.any()


def _check_inputs(student: Tensor, teacher: Tensor, target: Tensor, temperature: float) -> None:
    if student.shape != teacher.shape or student.shape[:-1] != target.shape:
        raise UsageError(
            "distillation_loss needs student and teacher logits of the same shape (..., classes) "
            f"and targets of shape (...), but got {tuple(student.shape)}, {tuple(teacher.shape)} "
            f"and {tuple(target.shape)}.",
            cure=(
                "If the models use different tokenizers, map the teacher's logits to the "
                "student's vocabulary."
            ),
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(
            f"distillation_loss needs a finite temperature above 0, but got {temperature!r}.",
            cure="Values from 1 to 5 are usual.",
        )
