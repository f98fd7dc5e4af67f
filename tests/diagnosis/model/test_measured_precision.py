"""A name says what most of the work of training was done in; what is aside of that does not change it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import halfguard as hg
from halfguard.diagnosis.model.forward import CallContext, Product
from halfguard.diagnosis.model.measured_precision import (
    describe_precision,
    measure_precision,
    parse_precision,
)
from halfguard.records.diagnosis import EffectivePrecision
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.diagnosis.model.test_products import HalfLinear
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")

FP32: Counter[torch.dtype] = Counter({torch.float32: 1})


def product(dtype: torch.dtype, work: float, name: str | None = "layer", **more: Any) -> Product:
    context = CallContext(
        name, torch.bfloat16 if dtype is torch.bfloat16 else None, more.pop("island", False)
    )
    return Product(dtype, context, work, more.pop("trains", True))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 10**12)), min_size=1))
def test_most_of_the_work_decides_whatever_the_count(layers: list[tuple[bool, int]]) -> None:
    ran = measure_precision(
        [
            product(torch.bfloat16 if half else torch.float32, work, str(index))
            for index, (half, work) in enumerate(layers)
        ],
        FP32,
    )
    half, total = sum(work for half, work in layers if half), sum(work for _, work in layers)
    expected = "fp32" if not half else "bf16-mixed" if 2 * half >= total else "partly bf16-mixed"
    assert ran.name == expected
    assert ran.is_partial == (expected == "partly bf16-mixed")
    if ran.is_partial:
        assert ran.wider_modules == tuple(str(i) for i, (half, _) in enumerate(layers) if not half)


@pytest.mark.parametrize(
    "aside",
    [
        product(torch.float16, 1e9, trains=False),
        product(torch.float16, 1e9, None),
        product(torch.float32, 1e9, island=True),
    ],
    ids=["without gradients", "outside the model", "island"],
)
def test_what_does_not_count_and_what_remains_when_nothing_else_does(aside: Product) -> None:
    assert measure_precision([product(torch.bfloat16, 1), aside], FP32).name == "bf16-mixed"
    alone = "fp32" if aside.dtype is torch.float32 else "fp16-mixed"
    assert measure_precision([aside], FP32).name == alone
    assert measure_precision([], FP32).name == "unknown"


def test_weights_are_named_by_their_own_dtype() -> None:
    seen = [product(torch.bfloat16, 1)]
    assert measure_precision(seen, Counter({torch.bfloat16: 1})).name == "bf16-weights"
    other = measure_precision(seen, Counter({torch.float16: 9, torch.float32: 1}))
    assert (other.name, other.weights, other.autocast) == ("bf16 on fp16 weights", "fp16", "bf16")
    assert measure_precision(seen, Counter({torch.float64: 1})).name == "bf16-mixed"


def test_words() -> None:
    assert describe_precision("fp32") == "in fp32"
    assert describe_precision("partly bf16-mixed") == "partly in bf16-mixed"
    for name, weights, autocast in (
        ("fp16-weights", "fp16", "fp16"),
        ("bf16-mixed", "fp32", "bf16"),
        ("fp16-true", "fp16", "off"),
    ):
        parsed = parse_precision(name)
        assert (parsed.weights, parsed.autocast) == (weights, autocast)


def effective(*args: Any, **kwargs: Any) -> EffectivePrecision:
    seen = hg.doctor(*args, **kwargs).effective
    assert seen is not None
    return seen


class Head(nn.Module):
    """Twelve layers, and a head that alone is under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        with torch.autocast(device_type(), torch.bfloat16):
            output: Tensor = self.head(x)
        return output


@pytest.mark.on_standin
@pytest.mark.usefixtures("seed")
def test_autocast_around_a_small_part_of_the_model() -> None:
    model, x = Head(), batch()
    diagnosis = hg.doctor(model, precision="bf16-mixed", loss=loss, batch=x)
    assert codes(diagnosis) == ["HD101"]
    finding = found(diagnosis, "HD101")
    assert "ran partly in bf16-mixed" in finding.message
    assert "12 in float32, 1 in bfloat16 (head)" in finding.message
    assert "body.0, body.1, body.2 and 9 more" in finding.why
    again = "diagnosis = halfguard.doctor(model, precision='bf16-mixed', loss=loss, batch=x)"
    assert cured(finding, again, model=model, loss=loss, x=x)["diagnosis"].findings == ()

    (other,) = hg.doctor(model, precision="fp32", loss=loss, batch=x).findings
    assert other.code == "HD101"
    assert "instead of the one inside the model" in other.cure


@pytest.mark.usefixtures("seed")
def test_autocast_around_the_loss_only() -> None:
    def contrastive(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        with torch.autocast(device_type(), torch.float16):
            return nn.functional.cross_entropy(y @ y.T, torch.arange(len(y)))

    model, scaler = nn.Linear(4, 4), torch.amp.GradScaler(device_type())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diagnosis = hg.doctor(
        model, optimizer, scaler=scaler, precision="fp16-mixed", loss=contrastive, batch=batch()
    )
    assert codes(diagnosis) == ["HD101"]
    assert "1 in float32, 1 in float16 (outside the model)" in found(diagnosis, "HD101").message
    # Gradients pass through the FP16 of the loss all the same.
    (finding,) = hg.doctor(
        model, optimizer, precision="fp32", loss=contrastive, batch=batch()
    ).findings
    assert finding.code == "HG207"
    assert finding.message.startswith("a part of the forward pass runs in float16")


class Encoded(nn.Module):
    """A frozen FP16 encoder beside what is trained, as in latent diffusion."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = (
            nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).half().requires_grad_(False)
        )
        self.denoiser = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device_type(), enabled=False):
            x = self.encoder(x.half()).float()
        return self.denoiser(x)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "left out of the optimizer"])
@pytest.mark.parametrize("asked", ["fp32", "bf16-mixed", None])
def test_a_half_encoder_without_gradients(asked: str | None, frozen: bool) -> None:
    model = Encoded()
    model.encoder.requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model.denoiser.parameters())
    with torch.autocast(device_type(), torch.bfloat16, enabled=asked == "bf16-mixed"):
        diagnosis = hg.doctor(model, optimizer, precision=asked, loss=loss, batch=batch())
    assert diagnosis.findings == ()
    assert diagnosis.effective.got == (asked or "fp32")
    beside = "; without gradients: 4 in float16 (encoder.0, encoder.1, encoder.2 and 1 more)"
    assert diagnosis.effective.evidence[0].endswith(beside)


@pytest.mark.usefixtures("seed")
def test_an_evaluation_has_a_name_too() -> None:
    def evaluated(model: nn.Module, x: Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    with torch.autocast(device_type(), torch.float16):
        assert effective(net(), loss=evaluated, batch=batch()).got == "fp16-mixed"
    assert effective(net(), loss=evaluated, batch=batch()).got == "fp32"


@pytest.mark.usefixtures("seed")
def test_fp16_weights_under_bf16_autocast() -> None:
    model = net().half().requires_grad_(False)
    with torch.autocast(device_type(), torch.bfloat16):
        (finding,) = hg.doctor(model, precision="bf16-mixed", batch=batch()).findings
        assert "ran in bf16 on fp16 weights" in finding.message
        assert finding.why == "The trained weights are fp16."
        cured(finding, model=model)
        assert hg.doctor(model, precision="bf16-mixed", batch=batch()).findings == ()


class Long(nn.Module):
    """Attention over so many tokens that it is most of the work."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("asked", ["bf16-mixed", "bf16-true", "fp32"])
def test_long_attention_is_no_partial_precision(asked: str) -> None:
    model, x = Long(), torch.linspace(-1, 1, 256 * 16).reshape(1, 256, 16)
    if asked == "bf16-true":
        model, x = model.bfloat16().requires_grad_(False), x.bfloat16()
    with torch.autocast(device_type(), torch.bfloat16, enabled=asked == "bf16-mixed"):
        assert effective(model, precision=asked, batch=x).got == asked
    if asked == "fp32":
        assert effective(model, precision="bf16-mixed", batch=x).got == "fp32"


@pytest.mark.usefixtures("seed")
def test_fp16_inside_a_function_needs_a_scaler() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.ones(16, 4)), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Any:
            return self.head(HalfLinear.apply(x, self.weight))  # type: ignore[no-untyped-call]

    model = Custom()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert codes(hg.doctor(model, optimizer, loss=loss, batch=batch())) == ["HG207"]


class OneHalf(nn.Module):
    """Eleven layers without autocast, of which one is in FP16."""

    def __init__(self, layers: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4).half()
        self.rest = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.first(x.to(self.first.weight.dtype)).float())


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("layers", [10, 1], ids=["partly", "half of it"])
def test_one_half_layer_without_autocast_is_cured_by_a_conversion(layers: int) -> None:
    model = OneHalf(layers).requires_grad_(False)
    finding = found(hg.doctor(model, precision="fp32", batch=batch()), "HD101")
    assert "autocast" not in finding.cure
    assert "Autocast was enabled" not in finding.why
    cured(finding, model=model)
    assert hg.doctor(model, precision="fp32", batch=batch()).findings == ()


@pytest.mark.usefixtures("seed")
def test_a_tensor_that_is_trained_outside_of_a_frozen_half_model() -> None:
    model, prompt = net().half().requires_grad_(False), torch.zeros(4, 4, requires_grad=True)

    def inverted(model: nn.Module, x: Tensor) -> Tensor:
        return loss(model, (x + prompt).half())

    optimizer, scaler = torch.optim.AdamW([prompt]), torch.amp.GradScaler(device_type())
    diagnosis = hg.doctor(
        model, optimizer, scaler=scaler, precision="fp16-mixed", loss=inverted, batch=batch()
    )
    assert diagnosis.effective.got == "fp16-mixed"
    assert "trained weights: float32" in diagnosis.effective.evidence


@pytest.mark.usefixtures("seed")
def test_an_island_of_most_of_the_work_is_meant() -> None:
    model = net()
    hg.fp32_island(model[0])
    with torch.autocast(device_type(), torch.bfloat16):
        seen = effective(model, precision="bf16-mixed", batch=batch())
    assert seen.got == "bf16-mixed"
    assert seen.evidence[0] == "matrix products: 1 in float32, 1 in bfloat16 (2)"
