"""The statistics against scipy's own tests, against laws, and against studies whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from halfguard.records.study import VerdictLabel
from halfguard.validation.judgement.statistics import (
    LEVEL,
    Criteria,
    Floats,
    claims,
    excess,
    holm,
    interval,
    noise,
    p_below_zero,
    seeds_needed,
)
from halfguard.validation.judgement.verdict import verdict_labels
from tests.validation.simulation import TERMS, data, fixed

STUDIES = 2000


def binomial(share: float, chance: float = 1e-6) -> float:
    """The highest share that 2,000 studies show of an event of probability ``share``, but for luck."""
    return float(stats.binom.ppf(1 - chance, STUDIES, share)) / STUDIES


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# The truth of the verdict ------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0025, 0.005, 0.01])
@pytest.mark.parametrize("candidates", [1, 3])
def test_a_loss_at_the_threshold_is_rarely_passed_and_no_loss_nearly_always(
    spread: float, candidates: int
) -> None:
    seeds = seeds_needed(TERMS.passing, spread, LEVEL / candidates)
    assert seeds is not None
    at = fixed(*data(generator(1), STUDIES, seeds, 0.01, spread, candidates=candidates))
    assert at.any_pass <= 0.05
    assert at.any_pass <= binomial(LEVEL)
    none = fixed(*data(generator(2), STUDIES, seeds, 0.0, spread, candidates=candidates))
    assert none.passes >= 0.9 - (binomial(0.1, 1e-3) - 0.1)
    assert none.fails == 0


def test_without_the_correction_several_candidates_would_pass_wrongly() -> None:
    baseline, candidate = data(generator(3), STUDIES, 8, 0.01, 0.005, candidates=6)
    careless = (claims(baseline, candidate, TERMS).passes <= LEVEL).any(-1).mean()
    assert careless > binomial(LEVEL)  # or the test above could not fail
    assert fixed(baseline, candidate).any_pass <= binomial(LEVEL)


@pytest.mark.parametrize("loss", [0.012, 0.02, 0.05, 0.118])
def test_a_larger_loss_is_passed_even_more_rarely(loss: float) -> None:
    assert fixed(*data(generator(4), STUDIES, 5, loss, 0.005)).any_pass <= binomial(LEVEL)


@pytest.mark.parametrize(("loss", "spread"), [(-0.05, 0.005), (-0.01, 0.005), (-0.3, 0.02)])
def test_a_candidate_that_is_better_is_never_failed(loss: float, spread: float) -> None:
    rates = fixed(*data(generator(5), STUDIES, 6, loss, spread))
    assert rates.fails == rates.marginal == 0
    assert rates.passes > 0.95


def test_a_loss_at_the_second_threshold_is_rarely_called_a_failure_or_marginal() -> None:
    rates = fixed(*data(generator(6), STUDIES, 12, 0.02, 0.004))
    assert rates.fails <= binomial(LEVEL)
    assert rates.marginal <= binomial(LEVEL)


def test_a_loss_between_the_thresholds_is_marginal_and_a_large_one_fails() -> None:
    assert fixed(*data(generator(7), STUDIES, 12, 0.015, 0.003)).marginal > 0.9
    assert fixed(*data(generator(8), STUDIES, 5, 0.118, 0.02)).fails > 0.9


def test_a_baseline_as_noisy_as_it_likes_does_not_raise_the_error() -> None:
    noise_of_seeds = generator(9)
    baseline = 1 + 0.4 * noise_of_seeds.standard_normal((STUDIES, 1, 5))
    candidate = 0.99 * baseline + 0.005 * noise_of_seeds.standard_normal((STUDIES, 1, 5))
    assert fixed(baseline, candidate).any_pass <= binomial(LEVEL)


# Against scipy ------------------------------------------------------------------------------------


def test_the_test_is_scipys() -> None:
    values = generator().normal(0.1, 1.0, (50, 7))
    expected = stats.ttest_1samp(values, 0.0, axis=-1, alternative="less").pvalue
    assert_allclose(p_below_zero(values), expected, rtol=1e-12)


def test_with_a_fixed_baseline_the_interval_is_students() -> None:
    lost = generator().normal(0.004, 0.01, 6)
    found = interval(np.full(6, 2.0), 2.0 - 2.0 * lost, Criteria())
    expected = stats.ttest_1samp(lost, 0.0).confidence_interval(0.95)
    assert_allclose([found.low, found.high], expected, rtol=1e-9)
    assert_allclose(found.loss, lost.mean())


@pytest.mark.parametrize("spread_of_seeds", [0.03, 0.3])
def test_the_interval_holds_the_truth_as_often_as_it_says(spread_of_seeds: float) -> None:
    noise_of_seeds = generator(11)
    baseline = 1 + spread_of_seeds * noise_of_seeds.standard_normal((20_000, 5))
    candidate = 0.985 * baseline + 0.01 * noise_of_seeds.standard_normal((20_000, 5))
    found = interval(baseline, candidate, Criteria())
    held = float(((found.low <= 0.015) & (found.high >= 0.015)).mean())
    assert held == pytest.approx(0.95, abs=0.006)


# Laws ---------------------------------------------------------------------------------------------

metrics = st.lists(
    st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=3, max_size=12
).map(np.array)


@given(metrics, st.floats(-0.5, 0.5))
def test_the_interval_holds_exactly_the_thresholds_that_are_not_rejected(
    pairs: Floats, threshold: float
) -> None:
    baseline, candidate = pairs.T
    found = interval(baseline, candidate, Criteria())
    if not np.isfinite(found.low) or np.ptp(baseline - candidate) < 1e-6:
        return
    gap = 1e-9 * max(1.0, abs(float(found.high)), abs(float(found.low)))
    below = p_below_zero(excess(baseline, candidate, threshold, Criteria()))
    if threshold > found.high + gap:
        assert below <= LEVEL + 1e-9
    elif threshold < found.low - gap:
        assert 1 - below <= LEVEL + 1e-9
    elif found.low + gap < threshold < found.high - gap:
        assert LEVEL - 1e-9 <= below <= 1 - LEVEL + 1e-9


@given(metrics, st.floats(1e-3, 1e3))
def test_units_do_not_matter(pairs: Floats, unit: float) -> None:
    baseline, candidate = pairs.T
    if np.ptp(baseline - candidate) < 1e-6:
        return
    here, there = (
        claims(baseline, candidate, TERMS),
        claims(unit * baseline, unit * candidate, TERMS),
    )
    assert_allclose(here, there, rtol=1e-6, atol=1e-9)


@given(metrics)
def test_a_metric_and_its_negative_are_the_same_question(pairs: Floats) -> None:
    baseline, candidate = pairs.T
    mirrored = claims(-baseline, -candidate, Criteria(higher_is_better=False))
    assert_allclose(claims(baseline, candidate, Criteria()), mirrored, atol=1e-12)


@given(metrics)
def test_lower_is_better_turns_a_loss_into_a_gain(pairs: Floats) -> None:
    baseline, candidate = pairs.T
    one = interval(baseline, candidate, Criteria())
    other = interval(baseline, candidate, Criteria(higher_is_better=False))
    assert_allclose(one.loss, -other.loss, atol=1e-12)
    assert_allclose(one.low, -other.high, rtol=1e-6, atol=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(np.array))
def test_holm_lies_between_no_correction_and_bonferronis(p: Floats) -> None:
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(len(p) * p, 1) + 1e-12).all()
    order = np.argsort(p)
    assert (np.diff(adjusted[order]) >= 0).all()


def test_holm_on_its_textbook_example() -> None:
    assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_no_noise_is_decided_by_the_sign() -> None:
    same = np.ones(5)
    assert verdict_labels(claims(same, same, TERMS)) == VerdictLabel.PASS
    assert verdict_labels(claims(same, 0.9 * same, TERMS)) == VerdictLabel.FAIL
    assert noise(same, same, TERMS) == 0


# How many seeds -----------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 1.5), st.integers(0, 10**6))
def test_the_seeds_that_are_asked_for_suffice_and_no_fewer_do(ratio: float, seed: int) -> None:
    needed = seeds_needed(0.01, 0.01 * ratio)
    assert needed is not None
    shares = []
    for count in (needed, needed - 1):
        values = generator(seed).normal(-1.0, ratio, (20_000, max(count, 2)))
        shares.append(float((p_below_zero(values) <= LEVEL).mean()))
    assert shares[0] >= 0.9 - 0.01
    assert needed == 3 or shares[1] <= 0.9 + 0.01


def test_no_number_of_seeds_settles_what_lies_on_the_threshold() -> None:
    assert seeds_needed(0.0, 0.01) is None
    assert seeds_needed(1e-6, 0.01) is None
    assert seeds_needed([0.005, -0.001], 0.01) is None


def test_two_claims_need_more_than_one() -> None:
    one, both = seeds_needed(0.005, 0.005), seeds_needed([0.005, 0.005], 0.005)
    assert one is not None
    assert both is not None
    assert both > one
