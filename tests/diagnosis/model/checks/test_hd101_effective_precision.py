"""The plain loop; the frameworks are in test_effective.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.on_standin
def test_no_autocast_where_one_was_asked_for() -> None:
    model, x = net(), batch()
    diagnosis = hg.doctor(model, precision="bf16-mixed", loss=loss, batch=x)
    assert codes(diagnosis) == ["HD101"]
    finding = found(diagnosis, "HD101")
    assert "ran in fp32 (matrix products: 2 in float32)" in finding.message
    again = "diagnosis = halfguard.doctor(model, precision='bf16-mixed', loss=loss, batch=x)"
    assert cured(finding, again, model=model, loss=loss, x=x)["diagnosis"].ok


def test_an_outer_autocast_where_fp32_was_asked_for() -> None:
    model, x = net(), batch()
    with torch.autocast(device_type(), torch.bfloat16):
        diagnosis = hg.doctor(model, precision="fp32", loss=loss, batch=x)
        finding = found(diagnosis, "HD101")
        again = "diagnosis = halfguard.doctor(model, precision='fp32', loss=loss, batch=x)"
        assert cured(finding, again, model=model, loss=loss, x=x)["diagnosis"].ok


NAMES = ["fp32", "fp16-mixed", "bf16-mixed", "fp16-weights", "fp16-true", "bf16-true"]


def built(name: str) -> tuple[torch.nn.Module, torch.autocast]:
    """A model and an autocast that run in a precision, made by hand."""
    dtype = torch.bfloat16 if name.startswith("bf16") else torch.float16
    model = net() if name in ("fp32", "fp16-mixed", "bf16-mixed") else net().to(dtype)
    return model, torch.autocast(
        device_type(), dtype, enabled=name.endswith(("-mixed", "-weights"))
    )


@pytest.mark.parametrize("asked", NAMES)
@pytest.mark.parametrize("got", NAMES)
def test_from_every_precision_to_every_other(asked: str, got: str) -> None:
    model, region = built(got)
    model.requires_grad_(False)
    again = "diagnosis = halfguard.doctor(\n    model, precision=asked, batch=x.to(model[0].weight.dtype)\n)"
    with region:
        x = batch().to(next(model.parameters()).dtype)
        diagnosis = hg.doctor(model, precision=asked, batch=x)
        assert diagnosis.effective is not None
        assert diagnosis.effective.got == got
        assert codes(diagnosis) == (["HD101"] if asked != got else [])
        if asked != got:
            finding = found(diagnosis, "HD101")
            mended = cured(finding, again, model=model, asked=asked, x=x)["diagnosis"]
            assert mended.findings == ()


def test_nothing_asked_nothing_found() -> None:
    diagnosis = hg.doctor(net(), batch=batch())
    assert diagnosis.effective is not None
    assert diagnosis.effective.asked is None
    assert diagnosis.effective.got == "fp32"
    assert diagnosis.ok


class CastsItself(torch.nn.Module):
    """Enters autocast in its forward pass, whatever trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output: torch.Tensor = self.net(x)
        return output


@pytest.mark.usefixtures("framework")
def test_an_autocast_of_the_code_itself_is_a_note_under_a_framework(tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    finding = found(hg.doctor(CastsItself(), trainer=arguments, batch=(batch(),)), "HD101")
    assert finding.severity == "note"
    weights = hg.doctor(net().bfloat16(), trainer=arguments, batch=(batch().bfloat16(),))
    assert found(weights, "HD101").severity == "warning"


@pytest.mark.usefixtures("framework")
@pytest.mark.parametrize(("rate", "severity"), [(0.1, "note"), (1e-6, "warning")])
def test_half_weights_are_a_note_under_a_framework_if_updates_are_kept(
    tmp_path: Path, rate: float, severity: str
) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    diagnosis = hg.doctor(model, optimizer, trainer=arguments, batch=(batch().bfloat16(),))
    assert found(diagnosis, "HD101").severity == severity


class LeavesAutocast(CastsItself):
    """Switches autocast off around all of its forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            output: torch.Tensor = self.net(x.float())
        return output


def test_autocast_that_the_code_switches_off_everywhere_is_a_note() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        left = hg.doctor(LeavesAutocast(), precision="bf16-mixed", batch=batch())
    assert found(left, "HD101").severity == "note"
    never = hg.doctor(net(), precision="bf16-mixed", batch=batch())
    assert found(never, "HD101").severity == "warning"
