"""The tape of a step: predicted errors are the measured ones, through everything that a step may do."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from halfguard.precision.emulation import emulate_autocast
from halfguard.records.rounding import RoundingReport
from halfguard.tracing.rounding import attribute, norm, tape_step
from tests.support.cases import each

pytestmark = pytest.mark.usefixtures("seed")


class Body(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(12, 16), between, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self.first(x)))
        return out


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2] *= 3.0
    y.mul_(0.5).add_(x)
    return y.relu_()


def expanded(x: Tensor) -> Tensor:
    return (x[:, None].expand(-1, 3, -1) * torch.arange(1.0, 4.0)[:, None]).sum(1)


def windows(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1)).unfold(-1, 3, 1).mean(-1)


def rotated(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * torch.polar(torch.ones(8), torch.linspace(0, 3, 8))
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def attended(x: Tensor) -> Tensor:
    q, k = x.reshape(2, -1, 4, 4).transpose(1, 2), x.reshape(2, -1, 4, 4).transpose(1, 2)[:, ::2]
    mixed = functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).reshape(x.shape)


def recomputed(x: Tensor) -> Tensor:
    out: Tensor = checkpoint(lambda y: torch.tanh(y) * y, x, use_reentrant=False)
    return out


def steep(x: Tensor) -> Tensor:
    return torch.sigmoid(x * 300)


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.4)


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.fft(x.float()).abs()


def leaking(x: Tensor) -> Tensor:
    return functional.prelu(x, torch.tensor([0.2]).to(x.dtype))


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        slope = torch.tanh(x)
        return grad * (slope + x * (1 - slope * slope))


BETWEEN = {
    "spectrum": spectrum, "prelu": leaking, "custom function": Custom.apply,
    "in place": in_place, "expanded": expanded, "windows": windows, "complex": rotated,
    "fused attention": attended, "checkpoint": recomputed, "steep": steep, "dropout": dropped,
    "silu": functional.silu, "norm": lambda x: functional.layer_norm(x, (16,)),
    "softmax": lambda x: (x * 5).softmax(-1), "mask": lambda x: x.masked_fill(x < 0, -math.inf).softmax(-1),
}  # fmt: skip


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 12), torch.randint(0, 3, (16,))


def taped(model: nn.Module, batch: Any, dtype: torch.dtype) -> RoundingReport:
    def run() -> Tensor:
        with emulate_autocast(dtype=dtype):
            return loss_of(model, batch)

    return attribute(tape_step(run, model, scale=256.0 if dtype is torch.float16 else 1.0), dtype)


@each(
    ("between", "dtype"),
    [
        pytest.param(between, dtype, id=f"{name} {dtype}")
        for name, between in BETWEEN.items()
        for dtype in (torch.float16, torch.bfloat16)
    ],
)
def test_effects_add_up_to_the_measured_error(
    between: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    report = taped(Body(between), data(), dtype)
    assert not report.not_judged
    assert report.loss_predicted == pytest.approx(report.loss_error, rel=0.05, abs=1e-9)
    assert report.gradient_predicted == pytest.approx(report.gradient_error, rel=0.05)
    assert 0 < report.gradient_error < 0.5 * report.gradient_norm


def test_the_exact_step_is_that_of_a_model_in_float64() -> None:
    model, batch = Body(torch.tanh), data()
    exact = copy.deepcopy(model).double()
    loss = loss_of_wide(exact, batch)
    loss.backward()
    report = taped(model, batch, torch.float16)
    assert report.loss - report.loss_error == pytest.approx(loss.item(), rel=1e-9)
    assert report.gradient_norm == pytest.approx(
        norm(p.grad for p in exact.parameters() if p.grad is not None), rel=1e-9
    )


def loss_of_wide(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0].double()), batch[1])


def test_casts_are_lines_of_their_own_and_modules_have_their_share() -> None:
    report = taped(Body(torch.tanh), data(), torch.float16)
    kinds = {(row.calls_module, row.rounding) for row in report.lines}
    assert {("first", "cast"), ("first", "cast of weights"), ("first", "operation")} <= kinds
    assert {"first", "last"} <= {row.module for row in report.modules}
    total = sum(row.gradient for row in report.modules)
    assert total == pytest.approx(report.gradient_predicted)
    assert any(row.backward for row in report.lines)
