"""A forward pass that raises, or runs in another precision than requested: HD100, HD101, HD110."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

import halfguard as hg
from halfguard.records.finding import Finding
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device", "seed")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def test_an_operation_without_a_half_kernel() -> None:
    model, x = Recurrent(), batch()[None]
    with torch.autocast(device_type(), torch.float16):
        with pytest.raises(RuntimeError):
            model(x)
        diagnosis = hg.doctor(model, batch=x)
        assert codes(diagnosis) == ["HD100"]
        assert found(diagnosis, "HD100").subject == "lstm"
        cured(found(diagnosis, "HD100"), model=model)
        assert hg.doctor(model, batch=x).ok


def test_a_half_norm_that_is_given_float32_under_autocast() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)).half().requires_grad_(False)
    with torch.autocast(device_type(), torch.float16):
        with pytest.raises(RuntimeError, match="mixed dtype"):
            model(batch())
        finding = found(hg.doctor(model, batch=batch()), "HD100")
        assert finding.subject == "0"
        cured(finding, model=model)
        assert hg.doctor(model, batch=batch()).ok


def test_a_plain_mistake_is_told_with_its_line() -> None:
    diagnosis = hg.doctor(net(), batch=torch.zeros(4, 5))
    (finding,) = diagnosis.findings
    assert finding.code == "HD100"
    assert "mat1 and mat2 shapes" in finding.message
    assert diagnosis.effective is None
    assert not diagnosis.ok


def test_no_memory_is_answered_with_where_to_look() -> None:
    def full(model: nn.Module, x: Tensor) -> Tensor:
        return torch.empty(2**46)

    (finding,) = hg.doctor(net(), loss=full, batch=batch()).findings
    assert finding.code == "HD100"
    assert "--cost" in finding.cure


def test_an_error_of_the_users_own_code() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raise KeyError("labels")

    (finding,) = hg.doctor(net(), loss=loss, batch=batch()).findings
    assert "'labels'" in finding.message
    assert 'raise KeyError("labels")' in finding.message


@pytest.mark.on_standin
def test_no_autocast_where_one_was_asked_for() -> None:
    model, x = net(), batch()
    diagnosis = hg.doctor(model, precision="bf16-mixed", loss=loss, batch=x)
    assert codes(diagnosis) == ["HD101"]
    finding = found(diagnosis, "HD101")
    assert "ran in fp32 (matrix products: 2 in float32)" in finding.message
    again = "diagnosis = halfguard.doctor(model, precision='bf16-mixed', loss=loss, batch=x)"
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
        assert diagnosis.effective.got == got
        assert codes(diagnosis) == (["HD101"] if asked != got else [])
        if asked != got:
            finding = found(diagnosis, "HD101")
            mended = cured(finding, again, model=model, asked=asked, x=x)["diagnosis"]
            assert mended.findings == ()


def test_nothing_asked_nothing_found() -> None:
    diagnosis = hg.doctor(net(), batch=batch())
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


def ramp() -> Tensor:
    return torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4).half(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x.to(self.query.weight.dtype)), self.key(x)
        return nn.functional.scaled_dot_product_attention(q, k, k)


MODELS = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half()),
    "conv1d": lambda: nn.Sequential(nn.Identity(), nn.Conv1d(3, 3, 1).half()),
    "scaled_dot_product_attention": Attention,
}


@pytest.mark.parametrize("operation", MODELS)
def test_two_dtypes_meet(operation: str) -> None:
    model = MODELS[operation]()
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        model(ramp())
    finding = found(hg.doctor(model, batch=ramp()), "HD110")
    assert finding.message.startswith(f"{operation} in ")
    assert "float32 and float16" in finding.message or "float16 and float32" in finding.message
    assert finding.subject == (None if operation.startswith("scaled") else "1")

    again = "diagnosis = halfguard.doctor(model, batch=x)"
    space = cured(finding, again, model=model, x=ramp())
    assert "HD110" not in [one.code for one in space["diagnosis"].findings]
    cured(finding, "model(x)", model=model, x=ramp())


@pytest.mark.on_standin
def test_the_line_of_the_users_code_is_named() -> None:
    model = nn.Linear(4, 1).half()
    finding = found(hg.doctor(model, loss=loss, batch=ramp()), "HD110")
    assert "helper.py" in finding.message


def test_two_dtypes_that_torch_promotes_are_fine() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.half()

    assert hg.doctor(Sum(), batch=ramp()).ok


def test_pure_half_is_cured_by_the_batch_and_not_by_autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 1)).half().requires_grad_(False)
    finding = found(hg.doctor(model, precision="fp16-true", batch=ramp()), "HD110")
    x = cured(finding, batch=ramp())["batch"]
    assert hg.doctor(model, precision="fp16-true", batch=x).findings == ()


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        ("fp16-true", torch.float16),
        ("fp32", torch.float32),
        ("bf16-mixed", torch.float32),
        ("bf16-true", torch.float32),
    ],
)
def test_the_cure_leads_to_what_was_asked_for(asked: str, dtype: torch.dtype) -> None:
    """Cures are applied until there are none left: they must not lead in a circle."""
    model = nn.Sequential(nn.Linear(4, 4).half(), nn.Linear(4, 4)).requires_grad_(False)
    again = "diagnosis = halfguard.doctor(model, precision=asked, batch=batch)"
    names = {"model": model, "asked": asked, "batch": ramp().to(dtype)}
    diagnosis = cured(Finding(code="HD100", message="-", cure="pass"), again, **names)["diagnosis"]
    assert diagnosis.findings
    lines: list[str] = []
    while diagnosis.findings:
        assert len(lines) < 4, lines
        finding = diagnosis.findings[0]
        lines.append(finding.cure)
        space = cured(finding, again, **names)
        diagnosis, names["batch"] = space["diagnosis"], space["batch"]
    assert diagnosis.effective.got == asked


def test_a_mixture_in_the_loss_is_not_the_models() -> None:
    def scored(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.linear(model(x), torch.ones(2, 1)).mean()

    model = nn.Linear(4, 1).half().requires_grad_(False)
    finding = found(
        hg.doctor(model, precision="fp16-true", loss=scored, batch=ramp().half()), "HD110"
    )
    assert finding.message.startswith("linear outside the model received float16 and float32")
    assert finding.cure == "Cast both operands there: .to(torch.float16)"


class Island(nn.Module):
    """Switches autocast off around its last layer, and may forget to give it FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.enter = "pass"

    def forward(self, x: Tensor) -> Tensor:
        space = {"x": self.first(x)}
        exec(self.enter, space)
        with torch.autocast(device_type(), enabled=False):
            output: Tensor = self.last(space["x"])
        return output


@pytest.mark.parametrize("asked", ["bf16-mixed", None])
def test_a_mixture_in_an_island_is_not_cured_by_the_autocast_around_it(asked: str | None) -> None:
    model = Island()
    with torch.autocast(device_type(), torch.bfloat16):
        finding = found(hg.doctor(model, precision=asked, batch=ramp()), "HD110")
        assert finding.cure == "x = x.float()  # before the region where autocast is off"
        model.enter = finding.cure
        assert hg.doctor(model, precision=asked, batch=ramp()).findings == ()


@pytest.mark.parametrize(
    "wrap", [nn.Sequential, partial(torch.compile, backend="eager")], ids=["nested", "compiled"]
)
def test_half_weights_in_an_island_are_made_float_as_well(wrap: Any) -> None:
    inner = Island().requires_grad_(False)
    inner.last.half()
    model = wrap(inner)
    with torch.autocast(device_type(), torch.bfloat16):
        finding = found(hg.doctor(model, batch=ramp()), "HD110")
        cured(finding, model=model)
        assert hg.doctor(model, batch=ramp()).findings == ()


def test_a_size_that_does_not_fit_is_no_mixture() -> None:
    def joined(model: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([model(x).half(), x[:1]], dim=1)

    (finding,) = hg.doctor(nn.Linear(4, 4), loss=joined, batch=ramp()).findings
    assert finding.code == "HD100"
    assert "Sizes of tensors must match" in finding.message


def test_a_mixture_that_the_model_caught_is_not_what_it_raised_later() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4).half()

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(RuntimeError):
                self.layer(x)
            raise KeyError("labels")

    (finding,) = hg.doctor(Tries().requires_grad_(False), batch=ramp()).findings
    assert finding.code == "HD100"
    assert finding.subject is None
    assert "'labels'" in finding.message


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out.index_put_((torch.arange(2),), self.expert(x[:2]))
        return out


def test_a_write_of_another_dtype_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        finding = found(hg.doctor(_Experts(), batch=torch.ones(3, 4)), "HD110")
    assert "index_put_" in finding.message
    assert finding.cure == "Cast the values before writing them: source.to(target.dtype)"
