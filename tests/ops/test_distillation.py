"""Distillation against float64, and what it does when the teacher breaks."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from benchmarks.ops.references import distillation_loss_reference
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops import Distillation, cross_entropy, distillation_loss
from tests.support.cases import each

from .helper import DTYPES, assert_agrees, gradients

pytestmark = pytest.mark.usefixtures("device")

loss = partial(distillation_loss, temperature=2.0, kd_weight=0.7, ce_weight=0.3)
reference = partial(distillation_loss_reference, temperature=2.0, kd_weight=0.7, ce_weight=0.3)


def batch(dtype: torch.dtype, size: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    student, teacher = (size * torch.randn(2, 4, 6, 11, generator=generator)).to(dtype)
    target = torch.randint(0, 11, (4, 6), generator=generator)
    target[1, 3:] = -100
    return student, teacher, target


@each("dtype", DTYPES)
@each("size", [0.01, 3.0, 100.0, 1e4])
@each("temperature", [0.5, 1.0, 4.0])
def test_agrees_with_float64(dtype: torch.dtype, size: float, temperature: float) -> None:
    student, teacher, target = batch(dtype, size)
    assert_agrees(
        lambda student: loss(student, teacher, target, temperature=temperature).total,
        lambda student: reference(student, teacher, target, temperature=temperature),
        student,
        upstream=torch.tensor(256.0),
    )
    assert loss(student, teacher, target, temperature=temperature).kd_used


@pytest.mark.on_standin
def test_parts_add_up() -> None:
    parts = loss(*batch(torch.float16))
    torch.testing.assert_close(parts.total, 0.7 * parts.kd + 0.3 * parts.ce)
    assert parts.kd > 0


def test_a_student_that_equals_its_teacher_has_no_kd() -> None:
    student, _, target = batch(torch.float16)
    assert loss(student, student, target).kd.abs() < 1e-6


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher, target = batch(torch.float32)
    teacher.requires_grad_()
    student.requires_grad_()
    torch.autograd.backward(loss(student, teacher, target).total)
    assert teacher.grad is None


@each("dtype", DTYPES)
@each("poison", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_leaves_cross_entropy_alone(dtype: torch.dtype, poison: float) -> None:
    student, teacher, target = batch(dtype)
    teacher[0, 0, 0] = poison
    parts = loss(student, teacher, target)
    assert not parts.kd_used
    assert parts.kd == 0
    assert parts.total == 0.3 * parts.ce

    _, (found,) = gradients(lambda student: loss(student, teacher, target).total, (student,))
    _, (ce_alone,) = gradients(
        lambda student: 0.3 * cross_entropy(student.flatten(0, 1), target.flatten()), (student,)
    )
    assert found.isfinite().all()
    assert torch.equal(found, ce_alone)


def test_finite_logits_whose_kl_is_not_finite_fall_back_as_well() -> None:
    student = torch.tensor([[0.0, 3e38]])
    teacher = torch.tensor([[3e38, -3e38]])
    target = torch.tensor([1])
    value, (gradient,) = gradients(lambda student: loss(student, teacher, target).total, (student,))
    assert not loss(student, teacher, target).kd_used
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_a_broken_student_is_not_hidden() -> None:
    student, teacher, target = batch(torch.float16)
    student[0, 0, 0] = math.inf
    parts = loss(student, teacher, target)
    assert not parts.kd_used
    assert not parts.total.isfinite()


def test_ignored_positions_count_in_neither_term() -> None:
    student, teacher, target = batch(torch.float16)
    before = loss(student, teacher, target)
    student[1, 3:], teacher[1, 3:] = 7.0, math.nan
    after = loss(student, teacher, target)
    assert after.kd_used
    assert (before.total, before.kd, before.ce) == (after.total, after.kd, after.ce)


def test_no_label_at_all_is_nothing() -> None:
    student, teacher, target = batch(torch.float16)
    nothing = torch.full_like(target, -100)
    value, (gradient,) = gradients(
        lambda student: loss(student, teacher, nothing).total, (student,)
    )
    assert value == 0
    assert (gradient == 0).all()


def test_other_shapes_and_temperatures_are_refused() -> None:
    student, teacher, target = batch(torch.float16)
    with pytest.raises(UsageError, match="tokenizers"):
        loss(student, teacher[..., :5], target)
    with pytest.raises(UsageError, match="shape"):
        loss(student, teacher, target[0])
    with pytest.raises(UsageError, match="temperature"):
        distillation_loss(student, teacher, target, temperature=0.0, kd_weight=1.0, ce_weight=1.0)


def test_the_answer_is_a_named_tuple() -> None:
    assert Distillation._fields == ("total", "kd", "ce", "kd_used")
