"""The whole examination: healthy setups are clean, and nothing is left changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.diagnosis.doctor import all_checks, doctor_workload
from halfguard.errors import UsageError
from halfguard.precision_names import Precision
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import batch, codes, loss, net
from tests.support.devices import device_type, place
from tests.support.docs import ROOT

pytestmark = pytest.mark.usefixtures("device")

Optimizer = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: list[Optimizer] = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    torch.optim.AdamW,
    lambda p: torch.optim.AdamW(p, fused=True),
]


@pytest.mark.parametrize("build", OPTIMIZERS, ids=["sgd", "adamw", "fused"])
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed"])
def test_a_healthy_plain_loop_has_no_findings(build: Optimizer, precision: str) -> None:
    model = net(batchnorm=True)
    optimizer = build(model.parameters())
    dtype = {"fp16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(device_type(), enabled=precision == "fp16-mixed")
    with torch.autocast(device_type(), dtype or torch.float16, enabled=dtype is not None):
        diagnosis = hg.doctor(
            model, optimizer, scaler=scaler, precision=precision, loss=loss, batch=batch()
        )
    assert diagnosis.findings == ()
    assert diagnosis.ok


@pytest.mark.parametrize("build", OPTIMIZERS, ids=["sgd", "adamw", "fused"])
@pytest.mark.parametrize("precision", list(Precision))
def test_a_guard_has_no_findings(build: Optimizer, precision: Precision) -> None:
    model = net()
    optimizer = build(model.parameters())
    if precision.needs_master_weights:
        optimizer = hg.MasterWeights(build(model.half().parameters()))
    guard = hg.Guard(model, optimizer, {"precision": str(precision), "scale": {"init": 64.0}})
    diagnosis = hg.doctor(trainer=guard, loss=loss, batch=batch())
    assert diagnosis.findings == ()
    assert diagnosis.effective.got == precision
    assert guard.step(loss, batch()).applied


@pytest.mark.parametrize("precision", list(Precision))
def test_a_workload_as_a_guard_would_train_it(precision: Precision) -> None:
    model = net()
    job = hg.Workload(model, loss, [batch()], torch.optim.AdamW(model.parameters()))
    diagnosis = doctor_workload(job, precision=precision)
    assert diagnosis.findings == ()
    assert (diagnosis.effective.asked, diagnosis.effective.got) == (precision, precision)
    assert all(p.dtype is torch.float32 for p in model.parameters())


@pytest.mark.on_standin
def test_a_workload_with_a_weakness() -> None:
    model = net(batchnorm=True)
    job = hg.Workload(model, loss, [batch().half()], torch.optim.AdamW(model.parameters()))
    assert codes(doctor_workload(job, precision="fp16-weights")) == ["HD108"]


class Careful(nn.Module):
    """A model in which a forward pass changes something: buffers, generators, a counter by assignment."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = net(batchnorm=True)
        self.register_buffer("calls", torch.zeros(()))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.inner(self.dropout(x))


@pytest.mark.on_standin
def test_training_after_doctor_is_bitwise_training_without_it(seed: Callable[[int], None]) -> None:
    def train(*, examined: bool) -> dict[str, Tensor]:
        seed(0)
        model, scaler = Careful(), torch.amp.GradScaler(device_type(), init_scale=64.0)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            if examined:
                with torch.autocast(device_type(), torch.float16):
                    hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch())
            optimizer.zero_grad()
            with torch.autocast(device_type(), torch.float16):
                value = loss(model, batch())
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        return {**model.state_dict(), "loss": value.detach()}

    plain, examined = train(examined=False), train(examined=True)
    assert plain.keys() == examined.keys()
    assert all(torch.equal(plain[name], examined[name]) for name in plain)
    assert not torch.equal(plain["inner.0.weight"], Careful().inner[0].weight)  # it was trained


@pytest.mark.parametrize(
    "product",
    [
        lambda w, x: torch.mm(x, w),
        lambda w, x: torch.addmm(x, x, w),
        lambda w, x: torch.bmm(x[None], w[None]),
        lambda w, x: torch.baddbmm(x[None], x[None], w[None]),
        lambda w, x: torch.addbmm(x, x[None], w[None]),
        lambda w, x: torch.mv(w, x[0]),
        lambda w, x: torch.addmv(x[0], w, x[0]),
        lambda w, x: torch.einsum("ij,jk->ik", x, w),
        lambda w, x: x @ w,
    ],
)
@pytest.mark.usefixtures("seed")
def test_every_product_is_seen(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = nn.Linear(4, 4)
    with torch.autocast(device_type(), torch.bfloat16):
        diagnosis = hg.doctor(model, loss=lambda m, x: product(m.weight, x), batch=batch())
    assert diagnosis.effective.evidence[0].startswith("matrix products: 1 in ")


def test_a_model_without_a_product_is_unknown_and_not_wrong() -> None:
    diagnosis = hg.doctor(nn.LayerNorm(4), precision="fp16-mixed", batch=batch())
    assert diagnosis.effective.got == "unknown"
    assert diagnosis.ok


@pytest.mark.parametrize("given", [batch(), (batch(),), {"input": batch()}])
def test_a_batch_without_a_loss_is_what_the_model_is_called_with(given: Any) -> None:
    diagnosis = hg.doctor(net(), batch=place(given))
    assert diagnosis.effective.got == "fp32"


def test_compiled_models_are_run_as_written() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise AssertionError("doctor compiled the model")

    model: Any = torch.compile(net(), backend=backend)
    with torch.autocast(device_type(), torch.bfloat16):
        diagnosis = hg.doctor(model, precision="bf16-mixed", batch=batch())
    assert diagnosis.ok
    assert "2 in bfloat16" in diagnosis.effective.evidence[0]


def test_products_are_seen_although_the_caller_is_in_inference_mode() -> None:
    model, x = net(batchnorm=True), batch()
    before = model[1].running_mean.clone()
    with torch.inference_mode():
        diagnosis = hg.doctor(model, batch=x)
    assert diagnosis.effective.got == "fp32"
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.LazyLinear(2), "it is lazy"),
        (nn.LazyBatchNorm1d(), "it is lazy"),
        (nn.Linear(4, 2, device="meta"), "on the meta device"),
    ],
    ids=["lazy", "lazy buffers", "meta"],
)
def test_a_model_without_numbers_is_refused(model: nn.Module, words: str) -> None:
    assert hg.doctor(model).ok
    with pytest.raises(UsageError, match=words):
        hg.doctor(model, batch=batch())


def test_what_is_not_a_trainer() -> None:
    with pytest.raises(UsageError, match="received a dict, which is not supported"):
        hg.doctor(net(), trainer={})


def test_the_record_is_read_back_and_its_text_is_short() -> None:
    model = net().half()
    diagnosis = hg.doctor(model, torch.optim.Adam(model.parameters()), batch=batch().half())
    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis
    text = str(diagnosis)
    assert "got fp16-true" in text
    assert "fix: optimizer = halfguard.MasterWeights(optimizer)" in text
    assert len(text.splitlines()) < 25
    assert str(hg.doctor(net())) == "nothing found"


def test_every_check_has_its_code_and_its_place_in_the_reference() -> None:
    codes = [check.__name__.removeprefix("check_").upper()[:5] for check in all_checks()]
    assert len(codes) == 23
    page = (ROOT / "docs/reference/doctor.md").read_text()
    for code, check in zip(codes, all_checks(), strict=True):
        assert check.__doc__, code
        assert f"| {code} |" in page


# -- whatever is handed over instead of a model or an optimizer is answered with a sentence


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m: {"all": sgd(m)}, r"a dict as an optimizer(?s:.)*for a dict, its values\(\)"),
        (lambda m: m.parameters(), r"a Parameter as an optimizer(?s:.)*AdamW\(model\.parameters"),
        (lambda m: [sgd(m), None], "a NoneType as an optimizer"),
        (lambda m: "adamw", "a str as an optimizer"),
        (lambda m: 3, "a int as an optimizer"),
    ],
)
def test_what_is_not_an_optimizer(wrong: Any, says: str) -> None:
    model = net()
    with pytest.raises(UsageError, match=says):
        hg.doctor(model, wrong(model))


@pytest.mark.parametrize("wrong", ["model", torch.nn.Linear, object()])
def test_what_is_not_a_model(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"as the model, which is not a torch\.nn\.Module"):
        hg.doctor(wrong)


def test_none_one_several_and_whatever_iterates_over_them() -> None:
    model = net()
    one, other = sgd(model[0]), sgd(model[2])
    for right in (None, (), sgd(model), [one, other], iter([one, other]), {"a": one}.values()):
        assert hg.doctor(model, right).ok
