"""Looking after every seed: the error stays where it was, and plain answers come early."""

from __future__ import annotations

import time
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from halfguard.records.verdict import VerdictLabel
from halfguard.validation.judgement.decisions import verdict_labels
from halfguard.validation.judgement.sequential import (
    anytime_p_value,
    calibration,
    interim_level,
    sequential_claims,
)
from halfguard.validation.judgement.statistics import LEVEL, MIN_PAIRS, claims, seeds_needed
from tests.validation.judgement.test_statistics import STUDIES, binomial, generator
from tests.validation.simulation import TERMS, data, sequential


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "candidates"), [(0.0025, 1), (0.005, 1), (0.01, 1), (0.005, 3)])
def test_looking_after_every_seed_keeps_the_error_and_finds_what_is_there(
    spread: float, candidates: int
) -> None:
    needed = seeds_needed(TERMS.passing, spread, LEVEL / candidates)
    assert needed is not None
    seeds = ceil(1.25 * needed)
    at = sequential(*data(generator(1), STUDIES, seeds, 0.01, spread, candidates=candidates))
    assert at.any_pass <= 0.05
    assert at.any_pass <= binomial(LEVEL)
    none = sequential(*data(generator(2), STUDIES, seeds, 0.0, spread, candidates=candidates))
    assert none.passes >= 0.9 - (binomial(0.1, 1e-3) - 0.1)
    assert none.seeds < seeds  # that is what it is for


@pytest.mark.slow
def test_looking_without_the_calibration_would_pass_wrongly() -> None:
    baseline, candidate = data(generator(3), STUDIES, 20, 0.01, 0.005)
    passed = np.zeros(STUDIES, bool)
    for seen in range(MIN_PAIRS, 21):
        found = claims(baseline[..., :seen], candidate[..., :seen], TERMS)
        passed |= found.passes[:, 0] <= LEVEL
    assert passed.mean() > 0.05  # or the tests of this file could not fail
    assert sequential(baseline, candidate).any_pass <= binomial(LEVEL)


@pytest.mark.slow
def test_marginal_and_failing_claims_keep_their_error_too() -> None:
    rates = sequential(*data(generator(4), STUDIES, 16, 0.02, 0.004))
    assert rates.fails <= binomial(LEVEL)
    assert rates.marginal <= binomial(LEVEL)


@pytest.mark.slow
def test_a_disaster_is_seen_at_once() -> None:
    rates = sequential(*data(generator(5), STUDIES, 20, 0.118, 0.005))
    assert rates.fails > 0.99
    assert rates.seeds < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("planned", [3, 5, 12, 30])
def test_the_calibration_is_exact_on_paths_it_has_not_seen(planned: int) -> None:
    noise = generator(planned + 77).standard_normal((40_000, planned)) * 37.0
    counts = np.arange(1, planned + 1)
    mean = np.cumsum(noise, 1) / counts
    deviation = np.sqrt((np.cumsum(noise**2, 1) - counts * mean**2)[:, 2:] / (counts[2:] - 1))
    p = stats.t.cdf(mean[:, 2:] / deviation * np.sqrt(counts[2:]), counts[2:] - 1)
    for level in (0.005, LEVEL, 0.1):
        share = float((anytime_p_value(p, planned) <= level).mean())
        assert share <= level + 4 * np.sqrt(level / 40_000)
        assert share >= 0.9 * level - 4 * np.sqrt(level / 40_000)  # not bought with power


@pytest.mark.parametrize("planned", [3, 8, 20])
def test_the_level_of_a_look_is_what_decides_at_it(planned: int) -> None:
    for seen in range(MIN_PAIRS, planned + 1):
        p = np.ones(seen - MIN_PAIRS + 1)
        p[-1] = interim_level(LEVEL, seen, planned)
        assert anytime_p_value(p, planned) == pytest.approx(LEVEL, rel=0.01)


@pytest.mark.slow
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=10), st.integers(0, 5))
def test_further_looks_never_take_a_claim_back(p: list[float], more: int) -> None:
    planned = 12
    values = [anytime_p_value(np.array(p[:count]), planned) for count in range(1, len(p) + 1)]
    assert (np.diff(values) <= 0).all()


def test_a_study_of_three_seeds_is_judged_once() -> None:
    baseline, candidate = data(generator(6), 500, 3, 0.0, 0.005)
    once = claims(baseline, candidate, TERMS).passes
    assert_allclose(sequential_claims(baseline, candidate, TERMS, 3).passes, once, atol=0.006)


def test_the_calibration_is_the_same_every_time() -> None:
    first = calibration(6)
    calibration.cache_clear()
    assert (calibration(6) == first).all()


def test_large_numbers_lose_no_digits() -> None:
    baseline, candidate = data(generator(7), 200, 8, 0.004, 0.005)
    shifted = sequential_claims(baseline * 1e9, candidate * 1e9, TERMS, 8)
    assert_allclose(shifted, sequential_claims(baseline, candidate, TERMS, 8), rtol=1e-6, atol=1e-9)
    assert (verdict_labels(shifted) == VerdictLabel.PASS).any()


def test_the_level_of_a_look_is_read_and_not_computed_again() -> None:
    calibration(20)
    began = time.process_time()
    levels = [interim_level(LEVEL / m, seen, 20) for m in range(1, 51) for seen in range(3, 21)]
    assert time.process_time() - began < 0.5  # of 900; a quantile of the calibration takes longer
    assert levels[0] > 0


@pytest.mark.parametrize("level", [LEVEL, LEVEL / 7])
def test_what_a_look_decides_and_what_its_level_says_never_differ(level: float) -> None:
    chance = calibration(8)
    limit = interim_level(level, 8, 8)
    at = int(np.searchsorted(chance, limit))
    near = chance[at - 3 : at + 4]
    decided = np.array([anytime_p_value(np.append(np.ones(5), p), 8) <= level for p in near])
    assert (decided == (near < limit)).all()
