"""Ranges, loss scales and findings of small models whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from examples.overflowing import job
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.probing.probe import probe
from halfguard.probing.ranges import (
    ScaleWindow,
    binade_counts,
    highest_exponent,
    lost_share,
    lowest_exponent,
    significant_values,
)
from halfguard.records.ranges import LayerRange, ProbeReport, headroom
from halfguard.workload import Workload, load

pytestmark = pytest.mark.usefixtures("device")

ROOT = Path(__file__).parents[2]


class Fixed(nn.Module):
    """Two layers with one weight each: every magnitude can be said beforehand."""

    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.first.weight.fill_(first)
            self.second.weight.fill_(second)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def fixed(first: float, second: float) -> Workload:
    model = Fixed(first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Workload(model, lambda m, x: m(x).sum(), [torch.ones(1, 1)], optimizer)


def by_name(report: ProbeReport) -> dict[str, LayerRange]:
    return {layer.module: layer for layer in report.layers}


@pytest.mark.on_standin
def test_headroom_forward_and_backward(seed: object) -> None:
    report = probe(fixed(2.0**10, 2.0**-4), steps=3)
    layers = by_name(report)
    assert list(layers) == ["first", "second"]  # the model returns what "second" returned
    assert layers["first"].forward == (1024.0,) * 3
    assert layers["first"].forward_headroom == pytest.approx(math.log2(65504 / 1024))
    # d loss / d first = 2**-4, of its weight the same; d loss / d second = 1, of its weight 2**10
    assert layers["first"].backward == (2.0**-4,) * 3
    assert layers["second"].backward == (1024.0,) * 3
    assert (layers["first"].scale_low, layers["first"].scale_high) == (2.0**-21, 2.0**19)
    assert (layers["second"].scale_low, layers["second"].scale_high) == (2.0**-25, 2.0**5)
    assert (report.window.low, report.window.high, report.best_scale) == (1.0, 32.0, 16.0)
    assert not report.problems or {f.code for f in report.problems} == {"HG607"}


def test_vanishing_gradients_are_counted_by_loss_scale(seed: object) -> None:
    report = probe(fixed(2.0**-30, 2.0**-30), steps=2, scale=1.0)
    first = by_name(report)["first"]
    assert first.underflow_now == 1.0  # 2**-30
    assert first.underflow_best == 0.0  # 2**-30 * 2**14
    assert report.window.low == 2.0**5


def test_no_scale_fits_all_layers(seed: object) -> None:
    report = probe(fixed(2.0**14, 2.0**-34), steps=1)
    codes = [found.code for found in report.findings]
    assert "HG604" in codes
    assert report.window is None
    (found,) = (f for f in report.findings if f.code == "HG604")
    assert "first needs at least 512, second overflows above 2" in found.why


def test_a_layer_for_which_no_scale_fits(seed: object) -> None:
    # The gradient of its output is 2**-34, and that of its weight 2**14 times an input of 2**...: 2**11.
    workload = fixed(2.0**-10, 2.0**-34)
    workload.batches = [torch.full((1, 1), 2.0**45)]
    report = probe(workload, steps=1)
    assert [f.subject for f in report.findings if f.code == "HG603"] == ["first"]
    assert not by_name(report)["first"].fits
    assert by_name(report)["first"].scales == "none"


def test_outputs_beyond_half_and_close_to_it(seed: object) -> None:
    report = probe(fixed(2.0**17, 2.0**-2), steps=1)
    found = {f.code: f for f in report.findings}
    assert found["HG601"].subject == "first"
    assert "1.31e+05" in found["HG601"].message
    assert "1.0 bits below" in found["HG601"].why
    assert found["HG602"].subject == "second"
    assert report.problems


def test_a_run_in_half_says_where_it_broke_and_unscales_gradients(seed: object) -> None:
    half = probe(fixed(2.0**10, 2.0**-4), steps=2, precision="fp16-mixed", scale=16.0)
    full = probe(fixed(2.0**10, 2.0**-4), steps=2)
    assert by_name(half)["first"].backward == by_name(full)["first"].backward
    broken = probe(load(f"{ROOT}/examples/overflowing.py:t5"), precision="fp16-mixed", steps=3)
    first = broken.findings[0]
    assert (first.code, first.subject) == ("HG601", "blocks.1.wo")
    assert min(by_name(broken)["blocks.1.wo"].forward_headroom, 0) == -math.inf


@pytest.mark.on_standin
def test_the_workload_is_left_as_it_was(seed: object) -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4))
    workload = job(0, model, (16,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe(workload, steps=2)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_badly_scaled_weights_are_named(seed: object) -> None:
    layers = [nn.Linear(64, 64) for _ in range(4)]
    nn.init.normal_(layers[0].weight)  # the default of torch.randn
    nn.init.normal_(layers[1].weight, std=1e-5)
    nn.init.zeros_(layers[2].weight)  # meant: the start of an adapter
    tail = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3)]
    model = nn.Sequential(nn.Embedding(10, 64), *layers, *tail)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.arange(10)]
    workload = Workload(model, lambda m, x: m(x).square().mean(), data, optimizer)
    report = probe(workload, steps=1)
    assert [f.subject for f in report.findings if f.code == "HG607"] == ["1.weight", "2.weight"]


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"scale": 3.0}, {"scale": 0.5}, {"precision": "x"}]
)
def test_arguments_that_mean_nothing(wrong: dict[str, object], seed: object) -> None:
    with pytest.raises(UsageError):
        probe(fixed(1.0, 1.0), **wrong)  # type: ignore[arg-type]


def test_a_model_that_raises_is_the_users_business(seed: object) -> None:
    workload = fixed(1.0, 1.0)
    workload.batches = [torch.ones(2, 3)]
    with pytest.raises(UsageError, match=r"raised at step 0: RuntimeError: .*mat1.*test_probe\.py"):
        probe(workload)
    workload.loss = lambda m, x: x.sum() * 0.0 + torch.ones((), requires_grad=True)
    with pytest.raises(UsageError, match="No gradient reached the optimizer"):
        probe(workload)


# -- the arithmetic of scales


def test_scales() -> None:
    counts = {-30: 90, -10: 10}
    assert lost_share(counts, 0) == 0.9
    assert lost_share(counts, 5) == 0.0  # 2**-30 * 2**5 = 2**-25 .. 2**-24: not below half a step
    assert lost_share({-26: 1}, 0) == 1.0
    assert lowest_exponent(counts, 0.01) == 5
    assert lowest_exponent(counts, 0.95) == -15
    assert lowest_exponent({}, 0.01) is None
    assert significant_values({0: 1, -24: 2, -25: 3}) == {0: 1, -24: 2}
    assert (highest_exponent(1.0), highest_exponent(65519.0), highest_exponent(65520.0)) == (
        15,
        0,
        -1,
    )
    assert highest_exponent(0.0) is None
    assert highest_exponent(math.inf) is None
    assert binade_counts({0: 5, 150: 2}) == {0: 2}  # zeros are no values
    assert binade_counts({150: 2}, shift=4) == {-4: 2}
    assert ScaleWindow.of([None], [None]) == ScaleWindow(0, 24)
    assert ScaleWindow.of([3, -8], [20, 30]).best == 19
    assert ScaleWindow.of([9], [3]).empty
    assert headroom(0.0) == math.inf
    assert headroom(math.nan) == -math.inf
