from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.records.finding import Finding
from tests.diagnosis.model.checks.helper import cured, found, loss
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device", "seed")


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
    assert diagnosis.effective is not None
    assert diagnosis.effective.got == asked


def test_a_mixture_in_the_loss_is_not_the_models() -> None:
    def scored(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.linear(model(x), torch.ones(2, 1)).mean()

    model = nn.Linear(4, 1).half().requires_grad_(False)
    finding = found(
        hg.doctor(model, precision="fp16-true", loss=scored, batch=ramp().half()), "HD110"
    )
    assert finding.message.startswith("linear outside the model was given float16 and float32")
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
