"""A student learns from a teacher's logits and from the labels, and survives a teacher that fails.

    kd    = T² · mean_counted KL(softmax(teacher / T) ‖ softmax(student / T))
    ce    = mean_counted -log softmax(student)[target]
    total = kd_weight · kd + ce_weight · ce,   or ce_weight · ce alone if kd is not finite

T² keeps the gradient of kd at the size of ce's whatever the temperature. Positions whose label is
ignored count in neither term. Everything is float32, from log-softmax: no logit is clamped.

The fallback is decided on the device. Choosing the finite total afterwards would not be enough: a
gradient of 0 into a NaN is NaN. So what is not finite is replaced *before* the KL is computed, and
its result is discarded after. The CE term keeps its weight in the fallback, so its gradient does
not jump. Student logits that are not finite at a counted label make CE itself
non-finite, and that is not hidden.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import widen
from halfguard.ops.losses import cross_entropy, cross_entropy_reference


class Distillation(NamedTuple):
    """The parts of a distillation loss: scalars on the device of the logits, unread."""

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
    """KL to the teacher at a temperature plus cross-entropy; CE alone when the KL is not finite.

    Logits have the classes last, ``(..., classes)``, and ``target`` the shape before them. No
    gradient reaches the teacher.
    """
    _check(student_logits, teacher_logits, target, temperature)
    classes = student_logits.shape[-1]
    # Widened once for both terms: their gradients then meet in float32, and are rounded together.
    student = widen(student_logits).reshape(-1, classes)
    teacher = widen(teacher_logits).detach().reshape(-1, classes)
    counted = (target != ignore_index).reshape(-1, 1)

    soft_student, student_finite = _soften(student, counted, temperature)
    soft_teacher, teacher_finite = _soften(teacher, counted, temperature)
    divergence = (soft_teacher.exp() * (soft_teacher - soft_student)).masked_fill(~counted, 0.0)
    kd = temperature**2 * divergence.sum() / counted.sum().clamp(min=1)
    kd_used = student_finite & teacher_finite & kd.isfinite()
    kd = kd.masked_fill(~kd_used, 0.0)

    ce = cross_entropy(student, target.reshape(-1), ignore_index)
    return Distillation(kd_weight * kd + ce_weight * ce, kd, ce, kd_used)


def _soften(logits: Tensor, counted: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log-softmax(logits / T) with the broken and ignored replaced, and whether none broke."""
    scaled = (logits / temperature).masked_fill(~counted, 0.0)
    broken = ~scaled.isfinite()
    return scaled.masked_fill(broken, 0.0).log_softmax(-1), ~broken.any()


def _check(student: Tensor, teacher: Tensor, target: Tensor, temperature: float) -> None:
    if student.shape != teacher.shape or student.shape[:-1] != target.shape:
        raise UsageError(
            "distillation_loss needs student and teacher logits of one shape (..., classes) and "
            f"targets of shape (...); it was given {tuple(student.shape)}, {tuple(teacher.shape)} "
            f"and {tuple(target.shape)}.",
            cure="Two tokenizers: map the teacher's logits to the student's vocabulary first.",
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(
            f"distillation_loss needs a finite temperature above 0; it was given {temperature!r}.",
            cure="Values from 1 to 5 are usual.",
        )


def distillation_loss_reference(
    student_logits: Tensor,
    teacher_logits: Tensor,
    target: Tensor,
    *,
    temperature: float,
    kd_weight: float,
    ce_weight: float,
    ignore_index: int = -100,
) -> Tensor:
    """The total of distillation_loss in float64, for finite logits."""
    counted = target != ignore_index
    student = student_logits.double()[counted]
    teacher = teacher_logits.detach().double()[counted]
    probabilities = (teacher / temperature).softmax(-1)
    ratio = probabilities.log() - (student / temperature).log_softmax(-1)
    kl = torch.where(probabilities > 0, probabilities * ratio, 0.0).sum()
    kd = temperature**2 * kl / counted.sum().clamp(min=1)
    return kd_weight * kd + ce_weight * cross_entropy_reference(student, target[counted])
