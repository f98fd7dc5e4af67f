"""Losses against float64, and defined on the batches where the usual ones are NaN."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.ops.accuracy import all_finite
from benchmarks.ops.references import (
    binary_cross_entropy_reference,
    bpr_loss_reference,
    cross_entropy_reference,
)
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import UsageError
from halfguard.ops import binary_cross_entropy, bpr_loss, cross_entropy
from tests.support.cases import each
from tests.support.devices import place

from .helper import DTYPES, HALF, assert_agrees, gradients

every_dtype = each("dtype", DTYPES)


@every_dtype
@each("size", [1.0, 100.0, 2e4])
@each("label_smoothing", [0.0, 0.1])
def test_cross_entropy(dtype: torch.dtype, size: float, label_smoothing: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = (size * torch.randn(12, 7, 3, generator=generator)).to(dtype)
    target = torch.randint(0, 7, (12, 3), generator=generator)
    target[4], target[6, 1] = -100, -100
    assert_agrees(
        lambda x: cross_entropy(x, target, label_smoothing=label_smoothing),
        lambda x: cross_entropy_reference(x, target, label_smoothing=label_smoothing),
        logits,
        upstream=torch.tensor(1024.0),
    )
    torch.testing.assert_close(
        cross_entropy(logits, target, label_smoothing=label_smoothing),
        F.cross_entropy(logits.float(), target, label_smoothing=label_smoothing),
    )


@every_dtype
def test_cross_entropy_of_no_label_is_nothing(dtype: torch.dtype) -> None:
    logits, target = torch.ones(4, 3, dtype=dtype), torch.full((4,), 7)
    assert F.cross_entropy(logits, target, ignore_index=7).isnan()
    value, (gradient,) = gradients(lambda x: cross_entropy(x, target, ignore_index=7), (logits,))
    assert value == 0
    assert (gradient == 0).all()


def test_losses_of_half_are_float32_and_of_float64_are_float64() -> None:
    target = torch.zeros(2).long()
    for dtype, expected in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        x = torch.full((2, 3), 0.5, dtype=dtype)
        assert cross_entropy(x, target).dtype is expected
        assert binary_cross_entropy(x, x).dtype is expected
        assert bpr_loss(x, x).dtype is expected


@every_dtype
@each("size", [1.0, 50.0, 6e4])
def test_bpr(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(6)
    scores = (size * (2 * torch.rand(2, 64, generator=generator) - 1)).to(dtype)
    scores[:, 0] = torch.tensor([-size, size])
    assert_agrees(bpr_loss, bpr_loss_reference, *scores, upstream=torch.tensor(4096.0))


def test_the_usual_bpr_fails_in_float16() -> None:
    positive = torch.tensor([-60000.0, -10.0], dtype=torch.float16)
    negative = torch.tensor([60000.0, 10.0], dtype=torch.float16)
    assert (-((positive - negative).sigmoid() + 1e-8).log().mean()).isinf()
    value, found = gradients(bpr_loss, (positive, negative))
    assert value == (120000 + 20) / 2
    assert found[0].tolist() == [-0.5, -0.5]
    assert found[1].tolist() == [0.5, 0.5]


@every_dtype
def test_binary_cross_entropy(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    p = torch.rand(200, generator=generator).clamp(0.01, 0.99).to(dtype)
    for target in ((p > 0.3).to(dtype), torch.rand(200, generator=generator).to(dtype)):
        assert_agrees(
            lambda p, target=target: binary_cross_entropy(p, target),
            lambda p, target=target: binary_cross_entropy_reference(p, target),
            p,
            upstream=torch.tensor(64.0),
        )


@each("dtype", HALF)
@each("target", [0.0, 1.0])
def test_binary_cross_entropy_of_every_probability(dtype: torch.dtype, target: float) -> None:
    p = place(all_finite(dtype))
    p = p[(p > 0) & (p < 1)]
    count = len(p)
    value, (gradient,) = gradients(
        lambda p: binary_cross_entropy(p, torch.full_like(p, target)) * count, (p,)
    )
    exact = torch.where(torch.tensor(target) == 1, -1 / p.double(), 1 / (1 - p.double()))
    largest = torch.finfo(dtype).max
    representable = exact.abs() < largest
    assert value.isfinite()
    torch.testing.assert_close(
        gradient[representable].double(), exact[representable], rtol=torch.finfo(dtype).eps, atol=0
    )
    assert not gradient.isnan().any()


@every_dtype
def test_binary_cross_entropy_at_certainty(dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=dtype)
    target = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=dtype)
    info = torch.finfo(dtype)
    value, (gradient,) = gradients(lambda p: binary_cross_entropy(p, target), (p,))
    worst = -math.log(info.smallest_normal * info.eps) - math.log(info.eps / 4)
    assert value.item() == pytest.approx(worst / 4, rel=1e-6)
    # Two are certainly wrong and pushed back; two are right and have the true slope of log at 1.
    assert gradient.tolist() == [-1 / info.eps, 1 / info.eps, 0.25, -0.25]


@every_dtype
def test_the_loss_grows_towards_certainty(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    p = torch.tensor([1 - info.eps, 1 - info.eps / 2, 1.0], dtype=dtype)
    losses = [binary_cross_entropy(one, torch.zeros((), dtype=dtype)).item() for one in p]
    assert losses == sorted(losses)
    assert losses[1] < losses[2]


@given(st.floats(width=16, allow_nan=False, allow_infinity=False), st.booleans())
def test_beyond_the_unit_interval_the_gradient_points_back(p: float, positive: bool) -> None:
    x = torch.tensor([p], dtype=torch.float16)
    value, (gradient,) = gradients(
        lambda x: binary_cross_entropy(x, torch.full_like(x, float(positive))), (x,)
    )
    assert value.isfinite()
    assert not gradient.isnan().any()
    assert (gradient <= 0) if positive else (gradient >= 0)


def test_logits_at_ignored_labels_take_no_part_even_if_they_overflowed() -> None:
    for bad in (torch.inf, torch.nan):
        logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        logits[1] = bad
        logits.requires_grad_()
        target = torch.tensor([0, -100, 1])
        loss = cross_entropy(logits, target)
        loss.backward()
        assert loss.isfinite()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()
        assert (logits.grad[1] == 0).all()


def test_targets_that_would_be_misread_are_refused() -> None:
    probabilities = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UsageError, match="takes class indices"):
        cross_entropy(probabilities, probabilities)
    with pytest.raises(UsageError, match="a target for each probability"):
        binary_cross_entropy(probabilities[:, :1], torch.ones(4))
