"""The law of a growth is found from samples, and only what leads to the limit soon is announced."""

from __future__ import annotations

import random
from math import exp, inf, isnan, log, log2, nan

import pytest
import torch

from halfguard.guard.watching.growth import Growth, fit_growth, smooth
from halfguard.guard.watching.operation_maxima import _BITS, Maximum, Place
from halfguard.guard.watching.trends import (
    HORIZON,
    LEAST,
    NEAR_DIMINISHING,
    Sample,
    Trends,
    growth_to_limit,
    layers_of,
    leaves_range,
    merge_calls,
    vanishing_share,
)
from halfguard.guard.watching.watching import WatchWarnings
from halfguard.records.watch import WatchWarning
from tests.support.cases import each

STEPS = range(0, 160, 5)
LAWS = {
    "by a factor": lambda step: 0.001 * 2 ** (step / 20),
    "by an amount": lambda step: 0.05 + 0.004 * step,
    "by a square": lambda step: (0.05 + 0.004 * step) ** 2,
    "faster and faster": lambda step: (40 - 0.15 * step) ** -2,
}


def level_off(step: float, end: float, pace: float) -> float:
    """Grow to ``end``, by a part of the rest in each step."""
    return end * (1 - exp(-(step + 5) / pace))


def forecast(
    values: list[float], losses: list[float] | None = None, norms: list[float] | None = None
) -> Growth | None:
    """Forecast from samples at every fifth step; losses and norms that are not given stay as they are."""
    steady = [1.0] * len(values)
    series = zip(
        range(0, 5 * len(values), 5), values, losses or steady, norms or steady, strict=True
    )
    return growth_to_limit([Sample(*one) for one in series][-64:])


def announced(
    values: list[float], losses: list[float] | None = None, norms: list[float] | None = None
) -> int | None:
    """Return the first step at which a series is announced."""
    for count in range(1, len(values) + 1):
        some = [one and one[:count] for one in (losses, norms)]
        if forecast(values[:count], *some) is not None:
            return 5 * (count - 1)
    return None


@each("name", LAWS)
def test_a_clean_law_is_extended_to_the_limit(name: str) -> None:
    law = LAWS[name]
    steps = [step for step in STEPS if law(step) < 0.5]
    crossing = next(step for step in range(10_000) if law(step) >= 1)
    growth = fit_growth(steps, [law(step) for step in steps])
    assert steps[-1] + growth.ahead == pytest.approx(crossing, rel=0.05)
    assert growth.earliest <= growth.ahead <= growth.latest


def test_the_doubling_is_that_of_the_last_sample() -> None:
    growth = fit_growth(STEPS, [LAWS["by an amount"](step) for step in STEPS])
    assert growth.doubling == pytest.approx(LAWS["by an amount"](155) / 0.004 * 0.693, rel=0.01)


@pytest.mark.slow
@each("end", [0.1, 0.3, 0.6])
@each("pace", [50, 100, 300])
def test_growth_that_levels_off_is_not_announced(end: float, pace: float) -> None:
    assert announced([level_off(step, end, pace) for step in range(0, 2000, 5)]) is None


@pytest.mark.parametrize("name", ["by a factor", "by an amount", "by a square"])
def test_an_overflow_is_announced_within_the_horizon(name: str) -> None:
    law = LAWS[name]
    values = [law(step) for step in range(0, 260, 5) if law(step) < 1]
    step = announced(values)
    assert step is not None
    assert 50 <= len(values) * 5 - step <= 5 * (HORIZON + 1)


@each("seed", range(5))
def test_noise_near_the_limit_is_not_announced(seed: int) -> None:
    numbers = random.Random(seed)
    assert announced([0.3 * exp(numbers.gauss(0, 0.3)) for _ in range(400)]) is None


def test_a_single_spike_is_not_announced() -> None:
    values = [0.1] * 100
    for at in (40, 60, 61, 99):
        values[at] = 0.9
    assert announced(values) is None


def test_a_few_samples_are_no_evidence() -> None:
    growth = [0.1 * 2 ** (step / 8) for step in range(LEAST)]
    assert forecast(growth[:-1]) is None
    assert forecast(growth) is not None


def test_a_magnitude_is_not_extended_by_a_large_factor() -> None:
    assert forecast([2 ** (step - 50) for step in range(40)]) is None
    assert forecast([2 ** (step - 42) for step in range(40)]) is not None


@pytest.mark.parametrize(("goal", "power"), [(0.5, 1), (0.5, 2), (0.7, 2)])
def test_growth_that_ends_with_the_loss_is_not_announced(goal: float, power: int) -> None:
    values = [0.001 * 1.15**step for step in range(100) if 0.001 * 1.15**step < goal]
    losses = [(goal - value) ** power for value in values]
    assert announced(values) is not None
    assert announced(values, losses) is None


@pytest.mark.parametrize("power", [1, 2])
def test_a_goal_beyond_the_limit_is(power: int) -> None:
    values = [0.01 * step for step in range(1, 100)]
    assert announced(values, [(3 - value) ** power for value in values]) is not None
    assert announced(values, [0.5 - value for value in values]) is not None  # falls below 0


def test_growth_that_ends_with_the_gradient_is_not_announced_whatever_the_sign_of_the_loss() -> (
    None
):
    values = [0.001 * 1.1**step for step in range(80) if 0.001 * 1.1**step < 0.5]
    losses = [-value for value in values]
    assert announced(values, losses) is not None
    assert announced(values, losses, [1 - value / 0.5 for value in values]) is None
    assert announced(values, losses, [1 - value / 3 for value in values]) is not None


def poisson(goal: float, seed: int) -> tuple[list[float], list[float], list[float]]:
    """Learn counts by an exponential: magnitude, loss and gradient norm; batches differ by 5%."""
    numbers = random.Random(seed)
    values = [0.0005 * 1.2**step for step in range(60) if 0.0005 * 1.2**step < min(goal, 1)]
    counts = [numbers.gauss(1, 0.05) for _ in values]
    losses = [
        value / goal - count * log(value) - 9 for value, count in zip(values, counts, strict=True)
    ]
    norms = [abs(count - value / goal) for value, count in zip(values, counts, strict=True)]
    return values, losses, norms


@each("seed", range(5))
def test_with_diminishing_returns_a_forecast_waits_until_the_gradient_tells(seed: int) -> None:
    within = poisson(0.3, seed)
    assert announced(*within) is None
    assert announced(within[0]) is not None  # by the magnitude alone
    beyond = poisson(30, seed)
    step = announced(*beyond)
    assert step is not None
    assert beyond[0][step // 5] >= NEAR_DIMINISHING


@each("seed", range(5))
def test_slow_growth_with_much_noise_is_announced(seed: int) -> None:
    numbers = random.Random(seed)
    values = [(0.05 + 0.008 * at) * exp(numbers.gauss(0, 0.15)) for at in range(120)]
    crossing = next(at for at, value in enumerate(values) if value >= 1)
    step = announced(values[:crossing])
    assert step is not None
    assert 5 * crossing - step >= 30


@each(
    ("values", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 9.0, 1.0], [1.0, 1.0, 1.0]),
        ([1.0, 2.0, 9.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0, 8.0]),
        ([1.0, 1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_running_medians(values: list[float], expected: list[float]) -> None:
    assert smooth(values) == expected


# -- from operations to layers: headroom, vanished gradients, and lines that do not count

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
