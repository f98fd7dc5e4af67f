"""Compiled code is compared with eager mode, by the compiler that people use."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, loss, net
from tests.support.docs import ROOT


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
    assert "compiled, all is finite" in findings["overflowing"]["HD118"]["message"]
    assert "HD116" in findings["overflowing"]


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
