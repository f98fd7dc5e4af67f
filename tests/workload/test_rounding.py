"""``rounding``: lost digits are named by their line, the fix is tried, and nothing is left behind."""

from __future__ import annotations

import copy
import random as python_random
from typing import Any

import pytest
import torch
from benchmarks.digits.cases_of import Case, cases
from benchmarks.digits.healthy import repository_models
from torch import Tensor, nn
from torch.nn import functional

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.records.rounding import RoundingReport
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.rounding import rounding_page
from tests.support.models import differences

pytestmark = pytest.mark.usefixtures("seed")
CASES = {case.name: case for case in cases()}
FAST = ("variance_by_moments", "timestamps", "prices")
FAST_HEALTHY = ("mask: fused attention", "info nce", "clamped square", "saturated gates", "lstm")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES]
)
def test_a_line_that_loses_digits_is_first(name: str) -> None:
    case: Case = CASES[name]
    report = case.report()
    assert report.lines[0].line == case.guilty
    for found in report.findings:
        assert found.place.endswith(f"{name}.py:{case.guilty}")
        assert found.confirmed
        assert "in FP32" in str(report)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FAST_HEALTHY)
def test_a_healthy_model_is_not_accused(name: str, precision: str) -> None:
    model, loss_fn, batch = next(job for known, job in repository_models() if known == name)
    report = hg.rounding(model, loss_fn, batch, precision=precision)
    assert not report.findings
    assert str(report).startswith("no line costs more")


class Noisy(nn.Module):
    """Has all that a step may change: running statistics, dropout, gradients from before."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(functional.dropout(self.body(x), 0.3)) + 30.0
        var = (z * z).mean(-1, keepdim=True) - z.mean(-1, keepdim=True) ** 2
        out: Tensor = self.head((z - 30) * (var + 1).rsqrt())
        return out


def mean_square(model: Any, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.float().square().mean()


def test_nothing_is_left_behind() -> None:
    model, x = Noisy(), torch.randn(32, 8)
    mean_square(model, x).backward()
    before = copy.deepcopy((model.state_dict(), [p.grad for p in model.parameters()]))
    random = [torch.get_rng_state(), python_random.getstate()]
    report = hg.rounding(model, mean_square, x, precision="float16")
    assert report.findings  # so that lines were tried in FP32 as well
    after = model.state_dict(), [p.grad for p in model.parameters()]
    assert not differences(before, after)
    assert not differences(random, [torch.get_rng_state(), python_random.getstate()])
    assert not any(
        module._forward_hooks or vars(module).get("forward") for module in model.modules()
    )


def test_half_weights_are_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    report = hg.rounding(model, mean_square, torch.randn(8, 8).half(), precision="float16")
    assert report.gradient_predicted == pytest.approx(report.gradient_error, rel=0.05)
    assert all(p.dtype is torch.float16 for p in model.parameters())


def test_a_large_gradient_lowers_the_loss_scale() -> None:
    model = nn.Linear(8, 1)
    report = hg.rounding(model, lambda m, x: mean_square(m, x) * 1e3, torch.randn(8, 8))
    assert 1 <= report.scale < 65536


def test_a_step_that_is_not_finite_is_not_for_this_instrument() -> None:
    with pytest.raises(UsageError, match="not finite"):
        hg.rounding(nn.Linear(4, 1), lambda m, x: m(x).mean() / 0, torch.ones(2, 4))


def test_a_precision_that_is_not_known_raises() -> None:
    with pytest.raises(UsageError, match="not a 16-bit precision"):
        hg.rounding(nn.Linear(4, 1), mean_square, torch.ones(2, 4), precision="fp32")


def test_the_page_says_it_in_words() -> None:
    report = CASES["variance_by_moments"].report()
    assert RoundingReport.from_json(report.to_json()) == report
    page = rounding_page(report, "train.py:job")
    text = to_markdown(page)
    assert "in FP32 the step's error falls from" in text
    assert text.count("█") > 15
    assert "train.py:job in float16: one line costs" in to_html(page)
