"""Results that differ between two ways of running: HD118, HG609."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.diagnosis.model.checks import compared_results
from tests.diagnosis.model.checks.helper import batch, codes, found, loss, net
from tests.support.devices import device_type
from tests.support.docs import ROOT

pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture(scope="module")
def findings() -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "tests.diagnosis.model.checks.compiled_cases"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rounded", "in place"])
def test_a_rounding_that_the_compiler_leaves_out(findings: Any, case: str) -> None:
    assert "the loss differs by 0." in findings[case]["HD118"]["message"]


@pytest.mark.slow
def test_an_overflow_of_eager_mode_alone(findings: Any) -> None:
    assert "compiled, all values are finite" in findings["overflowing"]["HD118"]["message"]
    assert "HG601" in findings["overflowing"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["healthy", "dropout", "cured"])
def test_modes_that_agree_have_no_findings(findings: Any, case: str) -> None:
    assert findings[case] == {}


def test_a_model_that_is_not_compiled_is_not_repeated() -> None:
    calls = []

    def counted(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return loss(model, x)

    hg.doctor(net(), loss=counted, batch=batch())
    assert len(calls) == 1


class Kernel(nn.Module):
    """A weight of 1 / (1 + d * d) for each distance d: 0 where the square overflows."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.gain = scale, nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        distance = x * self.scale
        return self.scale**2 / (1 + distance * distance) * self.gain


def test_a_swallowed_overflow_is_found() -> None:
    x = torch.linspace(1, 2, 8).reshape(2, 4).half()
    half = Kernel(1000.0).half()
    assert bool(half(x).isfinite().all())
    finding = found(hg.doctor(half, batch=x), "HG609")
    assert "100%" in finding.message
    assert "HG609" not in codes(hg.doctor(Kernel(10.0).half(), batch=x))
    assert next(half.parameters()).dtype is torch.float16


def test_rounding_and_random_numbers_are_not_reported() -> None:
    with torch.autocast(device_type(), torch.float16):
        assert codes(hg.doctor(net(), loss=loss, batch=batch())) == []
        noisy = nn.Sequential(net(), nn.Dropout(0.9))
        assert codes(hg.doctor(noisy, batch=batch())) == []


def test_a_large_half_model_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_results, "_LARGEST", 3)
    x = torch.linspace(1, 2, 8).reshape(2, 4).half()
    assert "HG609" not in codes(hg.doctor(Kernel(1000.0).half(), batch=x))


def test_a_loss_near_zero_by_design_is_not_reported() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6)).half()
    teacher = copy.deepcopy(model)

    def distill(model: nn.Module, x: Tensor) -> Tensor:
        own, wanted = (m(x).float().log_softmax(-1) for m in (model, teacher))
        return nn.functional.kl_div(own, wanted, reduction="batchmean", log_target=True)

    x = batch().half()
    assert distill(model, x).item() == 0.0
    assert "HG609" not in codes(hg.doctor(model, loss=distill, batch=x))


@pytest.mark.parametrize("factor", [1.0, 1e-9], ids=["by the loss", "by the outputs"])
def test_a_swallowed_overflow_is_found_with_a_loss(factor: float) -> None:
    x = torch.linspace(1, 2, 8).reshape(2, 4).half()

    def value(model: nn.Module, x: Tensor) -> Tensor:
        return factor * model(x).float().square().mean()

    finding = found(hg.doctor(Kernel(1000.0).half(), loss=value, batch=x), "HG609")
    assert finding.subject == "the loss"
    assert (finding.path, "overflows there" in finding.message) == (__file__, True)


class Moments(nn.Module):
    """A variance as the difference of two moments, which has no digits left in half."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        var = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2
        return var.clamp(min=0.1) * self.gain


def test_the_line_that_loses_digits_is_named() -> None:
    x = 60 + 0.5 * torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).half()
    finding = found(hg.doctor(Moments().half(), batch=x), "HG609")
    assert (finding.path, "digits are lost there (var = " in finding.message) == (__file__, True)
    assert f"line {finding.line} of {__file__} in FP32" in finding.cure
