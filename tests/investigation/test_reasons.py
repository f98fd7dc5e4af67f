"""The reason of a bad number: the inputs of the operation at that moment, and where they come from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from halfguard.investigation.passes import Reason
from halfguard.investigation.tracking import ExactWatch
from halfguard.tracing.operation_places import ModuleStack

half, brain = torch.float16, torch.bfloat16


def run(step: Callable[[], Tensor]) -> Reason | None:
    watch = ExactWatch(ModuleStack(), run.__code__)
    with watch:
        loss = step()
        if loss.requires_grad:
            loss.float().sum().backward()
    assert watch.last is not None
    return watch.reasons[watch.last.index]


def zeros(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(4, 3, dtype=dtype, requires_grad=True)


def numbers(*values: float, dtype: torch.dtype = half) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def eps() -> Tensor:
    x = zeros(half).detach()
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-8)


def count() -> Tensor:
    chosen = torch.tensor([[True, False], [False, False]])
    return torch.ones(2) / chosen.float().sum(1)


def masked_row() -> Tensor:
    shut = torch.tensor([[False, True], [True, True]])
    return torch.zeros(2, 2).masked_fill(shut, -torch.inf).softmax(-1)


def distance() -> Tensor:
    z = torch.ones(3, 2, requires_grad=True)
    return (z[None] - z[:, None]).pow(2).sum(-1).sqrt()


def cross_entropy() -> Tensor:
    p = numbers(20.0, -20.0).requires_grad_().sigmoid()
    return functional.binary_cross_entropy(p.float(), torch.tensor([0.0, 1.0]))


def moments() -> Tensor:
    x = numbers(9.0, 9.0, 9.0, dtype=brain).requires_grad_()
    return ((x * x).mean() - x.mean() * x.mean()).sqrt()


def clamped() -> Tensor:
    x = numbers(1.0).requires_grad_()
    return torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6))


CASES = [
    (eps, "it divides by 0 (4 of 4 values) because the constant 1e-08 is 0 in float16 (add at "),
    (
        count,
        "it divides by 0 (1 of 2 values) because nothing is selected and a count is 0 (sum at ",
    ),
    (masked_row, "1 of 2 rows are fully masked: all of their scores are -Inf"),
    (distance, "its derivative is Inf at 0, which its input contains (9 of 9 values)"),
    (cross_entropy, "; a result is rounded to 0 and 1 in float16 (sigmoid at "),
    (moments, "(cancellation) (sub at "),
    (clamped, "of clamp is -1 in float16 and has no effect (clamp at "),
    (lambda: zeros() / zeros().norm(), "the norm of a vector of zeros is 0"),
    (lambda: torch.log(1 - torch.sigmoid(numbers(20.0))), "a value is rounded to 1 in float16"),
    (lambda: torch.log(torch.softmax(numbers(0.0, 30.0), 0)), "a result is rounded to 0 and 1"),
    (lambda: torch.ones(3)[:0].float().mean(), "its input is empty"),
    (lambda: torch.ones(1).std(), "the standard deviation of a single value"),
    (lambda: numbers(1.0) * 1e9, "the constant 1e+09 is beyond 65504"),
    (lambda: torch.full((70,), 1000.0, dtype=half).sum(), "the sum reaches 70000, but the largest"),
    (lambda: torch.full((2,), 1e6).half(), "values up to 1e+06 are cast to float16"),
    (lambda: 1 / (numbers(1e-4) * numbers(1e-4)), "the product is too small for float16"),
    (lambda: torch.ones(2) / numbers(0.0, 0.0, 2.0, 3.0).view(2, 2).sum(1), "are added are all 0"),
    (lambda: torch.ones(3).sub(1.0) / torch.ones(3).std(), "the deviation of equal numbers is 0"),
    (
        lambda: functional.normalize(zeros(half).detach(), eps=1e-12),
        "the limit 1e-12 of clamp is 0",
    ),
    (
        lambda: numbers(0.0).requires_grad_().relu().clamp(min=1e-6).pow(3).mean().pow(1 / 3),
        "because the power 3 is too small for float16 and became 0 (pow at ",
    ),
    (lambda: numbers(-1.0).sqrt(), "it is given negative numbers"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("step", "text"), CASES)
def test_the_reason_is_told_by_the_inputs(step: Callable[[], Tensor], text: str) -> None:
    reason = run(step)
    assert reason is not None
    assert text in reason.text


def test_equal_points_are_no_cancellation() -> None:
    reason = run(distance)
    assert reason is not None
    assert "cancellation" not in reason.text


def test_an_eps_that_is_zero_has_a_code_of_its_own() -> None:
    reason = run(eps)
    assert reason is not None
    assert reason.code == "HG119"


def test_labels_that_are_all_ignored_are_a_bad_batch() -> None:
    ignored = torch.full((2,), -100)
    reason = run(lambda: functional.cross_entropy(zeros()[:2], ignored))
    assert reason is not None
    assert reason.code == "HG612"
