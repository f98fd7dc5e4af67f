"""From operations to layers: headroom, vanished gradients, and lines that do not count."""

from __future__ import annotations

from math import inf, isnan, log2, nan

import pytest
import torch

from halfguard.guard.watching.operation_maxima import _BITS, Maximum, Place
from halfguard.guard.watching.trends import (
    Trends,
    layers_of,
    leaves_range,
    merge_calls,
    vanishing_share,
)
from halfguard.guard.watching.watching import WatchWarnings
from halfguard.records.watch import WatchWarning
from tests.support.cases import each

HALF = torch.float16


def at(op: str = "mul", module: str | None = "a", **more: object) -> Place:
    return Place(module, op, "model.py", 3)._replace(**more)  # type: ignore[arg-type]


def result(place: Place, absmax: float) -> Maximum:
    return Maximum(place, absmax, HALF, 10)


def test_a_layer_has_the_least_headroom_of_its_lines() -> None:
    maxima = [
        result(at("mul"), 4.0),
        result(at("add"), 1024.0),
        result(at(phase="backward"), 65504 / 2),
        result(at(module="b"), 1.0),
    ]
    first, second = layers_of(merge_calls(maxima), maxima, set())
    assert first.forward == pytest.approx(log2(65504 / 1024), abs=0.01)
    assert first.backward == 1.0
    assert second.backward == inf


def test_a_nan_of_one_call_stays() -> None:
    merged = merge_calls([result(at("mul"), nan), result(at("mul"), 5.0)])
    assert isnan(merged[at("mul")].absmax)


def test_a_line_known_to_be_harmless_does_not_count() -> None:
    maxima = [result(at("masked_add"), inf), result(at("mul"), 1.0)]
    [bad] = layers_of(merge_calls(maxima), maxima, set())
    [fine] = layers_of(merge_calls(maxima), maxima, {at("masked_add")})
    assert (bad.forward, bad.infinite) == (-inf, 1)
    assert (fine.forward, fine.infinite) == (16.0, 0)


@each(("absmax", "expected"), [(65503.0, False), (65504.0, True), (inf, True), (nan, True)])
def test_the_end_of_the_range(absmax: float, expected: bool) -> None:
    assert leaves_range(result(at(), absmax)) is expected


def test_calls_of_one_line_are_merged_by_their_largest() -> None:
    merged = merge_calls([result(at(), 1.0), result(at(), 8.0), result(at(), 2.0)])
    assert merged[at()].absmax == 8.0


@pytest.mark.parametrize("exponent", [-12, -16, -18, -20, -22, -24])
def test_the_estimate_of_vanished_gradients_is_near_the_truth(exponent: int, seed: object) -> None:
    torch.manual_seed(0)
    values = torch.randn(200_000, dtype=torch.float64) * 2.0**exponent
    half = values.half()
    bits = half.view(torch.int16)
    counts = tuple(int(torch.count_nonzero(bits.bitwise_and(mask))) for mask in _BITS)
    found = vanishing_share([Maximum(at(phase="backward"), 1.0, HALF, half.numel(), counts)])
    truth = (half == 0).double().mean().item()
    assert found == pytest.approx(truth, rel=0.5, abs=0.005)


def test_zeros_beside_normal_gradients_are_not_counted(seed: object) -> None:
    torch.manual_seed(0)
    values = (torch.randn(10_000) * (torch.rand(10_000) < 0.5)).half()
    bits = values.view(torch.int16)
    counts = tuple(int(torch.count_nonzero(bits.bitwise_and(mask))) for mask in _BITS)
    assert vanishing_share([Maximum(at(), 1.0, HALF, values.numel(), counts)]) < 0.001


def test_only_the_next_overflow_is_announced_and_only_once() -> None:
    trends, warnings = Trends(), WatchWarnings()
    told: list[WatchWarning] = []
    for step in range(0, 400, 5):
        maxima = [result(at("mul"), 2 ** (4 + step / 40)), result(at("add"), 2 ** (3 + step / 40))]
        trends.add(step, merge_calls(maxima), 1.0, 1.0)
        told += warnings.new(step, (), trends.forecasts(), ())
    assert [one.place for one in told] == ["model.py:3"]
    assert "mul" in told[0].text


def test_a_line_that_has_left_the_range_is_not_forecast() -> None:
    trends = Trends()
    for step in range(0, 200, 5):
        trends.add(step, merge_calls([result(at(), 2 ** (4 + step / 20))]), 1.0, 1.0)
    assert trends.forecasts()
    trends.add(205, merge_calls([result(at(), inf)]), 1.0, 1.0)
    assert trends.forecasts() == []


def test_a_line_that_no_longer_runs_is_not_forecast_and_hides_no_other() -> None:
    trends, warnings = Trends(), WatchWarnings()
    told: list[WatchWarning] = []
    for step in range(0, 2000, 5):
        maxima = [result(at("mul"), 2 ** (4 + step / 40))] if step < 440 else []
        if step >= 1500:
            maxima.append(result(at("add", "b"), 2 ** (4 + (step - 1500) / 40)))
        trends.add(step, merge_calls(maxima), 1.0, 1.0)
        told += warnings.new(step, (), trends.forecasts(), ())
        if 440 <= step < 1500:
            assert trends.forecasts() == []
    assert ["mul" in one.text for one in told] == [True, False]
