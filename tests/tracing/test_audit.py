"""Swallowed overflow: planted faults are named by their line, healthy steps raise no alarm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from benchmarks.models.swallowed import HEALTHY, PLANTED, Planted, is_held_out
from benchmarks.models.swallowed.audits import alarms, missed
from benchmarks.models.swallowed.base import Apply
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.precision_names import Precision
from halfguard.records.audit import AuditReport
from halfguard.tracing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from tests.support.cases import each

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore:index_reduce")]
FAST = {
    "rms-norm-product", "in-place-square", "written-slices", "checkpointed-norm", "gradient-hook",
    "half-model-softmax", "tiny-rms", "welsch", "ratio-loss", "global-response",
}  # fmt: skip
FAST_HEALTHY = (
    "mask -1e9 in half", "mask finfo.min twice", "log of a mask", "top-k attention",
    "routed experts", "padded maximum", "huber by hand", "simclr, -1e9", "huge negative logits",
    "fused attention, -1e9",
)  # fmt: skip


@pytest.mark.parametrize(
    "planted",
    [pytest.param(p, marks=() if p.name in FAST else pytest.mark.slow, id=str(p)) for p in PLANTED],
)
def test_a_swallowed_overflow_is_named_by_its_line(planted: Planted) -> None:
    assert not missed(planted)


@each("name", FAST_HEALTHY)
def test_a_healthy_model_raises_no_alarm(name: str) -> None:
    text, error = alarms(name, Precision.FP16_MIXED, trained=False)
    assert not text
    assert error < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP16_MIXED, Precision.BF16_MIXED])
@pytest.mark.parametrize("trained", [False, True])
def test_no_healthy_model_raises_an_alarm(trained: bool, precision: Precision) -> None:
    # Of the trained ones some; all: scripts/soak audit
    some = [name for name in HEALTHY if not trained or is_held_out(f"trained {name}")]
    assert len(some) >= 12
    assert not [text for name in some if (text := alarms(name, precision, trained=trained)[0])]


# -- small steps whose answer is known


def half_model(body: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    """Return a linear layer in half before a function, and inputs with one loud row."""
    model = nn.Sequential(nn.Linear(8, 8), Apply(body)).half()
    x = torch.randn(4, 8).half()
    x[0] *= 1000
    return model, x


def run(body: Callable[[Tensor], Tensor], **options: float) -> AuditReport:
    model, x = half_model(body)
    return audit(lambda: model(x).float().square().mean(), model, **options)  # type: ignore[arg-type]


def norm(x: Tensor) -> Tensor:
    return x / (x * x).mean(-1, keepdim=True).sqrt()


def test_the_report_says_what_half_and_fp32_have() -> None:
    report = run(norm)
    (found,) = report.findings
    assert (found.op, found.module, found.phase, found.fault) == ("mul", "1", "forward", "overflow")
    assert found.half.posinf == found.elements > 0
    assert found.fp32.posinf == 0
    assert found.fp32.high > 65504
    assert found.use.startswith("loss")
    assert found.code == "return x / (x * x).mean(-1, keepdim=True).sqrt()"
    assert report.loss_fp32 == pytest.approx(1, rel=0.01)
    assert report.loss_error == pytest.approx(0.25, rel=0.01)
    assert "swallowed overflow" in str(report)
    assert AuditReport.from_json(report.to_json()) == report


def test_find_first_nonfinite_names_it_too() -> None:
    model, x = half_model(norm)
    culprit = find_first_nonfinite(lambda: model(x).float().square().mean(), model)
    assert (culprit.op, culprit.swallowed, culprit.module) == ("mul", "overflow", "1")
    assert "swallowed overflow in the forward pass" in str(culprit)
    assert find_first_nonfinite(lambda: model(x / 1000).float().mean(), model) is None


@each(
    "body",
    [
        lambda x: torch.sigmoid(x * 1e4),
        lambda x: (x * x).clamp(max=10.0),
        lambda x: torch.where(x.abs() < 4, x * x, x.abs()),
        lambda x: torch.tanh(x) + 0 * (x * x).detach().isinf().half(),
        lambda x: x.relu() * 1e-7 + torch.tanh(x),
    ],
)
def test_what_changes_nothing_is_harmless(body: Callable[[Tensor], Tensor]) -> None:
    report = run(body)
    assert not report.findings
    assert report.harmless
    assert {found.use for found in report.harmless} == {"none"}


def test_float32_is_never_flagged() -> None:
    model, x = half_model(norm)
    report = audit(lambda: model.float()(x.float() * 1e3).mean(), model)
    assert not report.findings
    assert not report.harmless


def test_a_number_that_the_host_reads_is_not_judged() -> None:
    report = run(lambda x: x / (x * x).amax().item())
    assert not report.findings
    (reason,) = report.not_judged
    assert reason.startswith("the host reads a value that differs in FP32 at ")


def test_shadows_have_a_limit() -> None:
    report = run(norm, max_bytes=16)
    assert not report.findings
    assert [found.use for found in report.harmless] == ["not judged"]
    assert report.not_judged == (
        "the FP32 copies for the comparison would need more than 16 bytes",
    )


def test_dropout_keeps_the_shadow() -> None:
    report = run(lambda x: torch.native_dropout(norm(x), 0.5, train=True)[0])
    assert [found.op for found in report.findings] == ["mul"]
    assert not report.not_judged


def test_an_infinite_gradient_is_a_matter_of_the_loss_scale() -> None:
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    report = audit(lambda: model(x).half().float().sum() * 1e6, model)
    assert not report.findings
    assert report.harmless[0].phase == "backward"


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Apply(norm)).half()
    x = torch.randn(4, 8).half() * 500
    model(x).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad for p in model.parameters()]
    state = torch.get_rng_state()
    audit(lambda: nn.functional.dropout(model(x)).float().mean(), model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("options", [{"limit": 0.0}, {"limit": float("nan")}, {"max_bytes": -1}])
def test_arguments_that_mean_nothing(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        run(norm, **options)


def test_something_else_than_a_loss_is_refused() -> None:
    with pytest.raises(UsageError, match="fn returned str"):
        audit(lambda: "loss", nn.Linear(1, 1))
