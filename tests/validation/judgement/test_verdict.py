"""From runs to a verdict: every word it can say, the rules above the statistics, and what it says besides."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from halfguard.errors import RecordError
from halfguard.records.study import Curve, Study, Verdict, VerdictLabel
from halfguard.validation.judgement.statistics import Claims, claims, holm
from halfguard.validation.judgement.verdict import judge, verdict_labels
from tests.validation.simulation import TERMS, data
from tests.validation.studies import BASELINE, curve, losing, run, spec, study


def only(candidate: list[float | None], **changes: Any) -> Verdict:
    return judge(study({"fp16-mixed": candidate}, **changes))


@pytest.mark.parametrize(
    ("loss", "wobble", "word"),
    [
        (0.0, 0.001, VerdictLabel.PASS),
        (-0.05, 0.01, VerdictLabel.PASS),
        (0.015, 0.001, VerdictLabel.MARGINAL),
        (0.118, 0.005, VerdictLabel.FAIL),
        (0.009, 0.005, VerdictLabel.INCONCLUSIVE),
        (0.02, 0.001, VerdictLabel.INCONCLUSIVE),
    ],
)
def test_each_word(loss: float, wobble: float, word: VerdictLabel) -> None:
    verdict = only([*losing(loss, wobble=wobble)])
    assert verdict.comparisons[0].word is word
    assert verdict.word is word
    assert verdict.exit_code == (0 if word is VerdictLabel.PASS else 1)
    assert verdict.comparisons[0].loss == pytest.approx(loss, abs=1e-3)
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_one_run_each_proves_nothing_not_even_eleven_percent() -> None:
    verdict = judge(study({"fp16-mixed": [0.7816]}, [0.8863]))
    assert verdict.word is VerdictLabel.INCONCLUSIVE
    assert verdict.comparisons[0].further_seeds == 2


def test_a_run_that_breaks_where_the_baseline_finished_is_a_failure() -> None:
    verdict = only([*losing(-0.02)[:4], None])
    assert verdict.word is VerdictLabel.FAIL
    assert verdict.comparisons[0].broken == (4,)
    assert "seed 4: loss is NaN at step 7" in verdict.comparisons[0].reason
    assert verdict.comparisons[0].pairs == 4  # and the others are still told


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_a_failure_too(value: float) -> None:
    verdict = only([*losing(0.0)[:4], value])
    assert verdict.word is VerdictLabel.FAIL
    assert "hmean is" in verdict.comparisons[0].reason


def test_a_seed_that_the_baseline_broke_is_left_out_and_told() -> None:
    baseline: list[float | None] = [*BASELINE[:4], None]
    verdict = judge(study({"a": [*losing(0.0)[:4], None], "b": [*losing(0.0)]}, baseline))
    assert [c.word for c in verdict.comparisons] == [VerdictLabel.PASS, VerdictLabel.PASS]
    assert [c.pairs for c in verdict.comparisons] == [4, 4]
    assert any("seed 4" in note for note in verdict.notes)


def test_a_run_that_its_machine_lost_is_no_failure_and_allows_no_pass() -> None:
    whole = study({"fp16-mixed": [*losing(0.0)]})
    gone = run("fp16-mixed", 4, None, steps=0, environment={}, failure="worker died 3 times")
    verdict = judge(whole.model_copy(update={"runs": (*whole.runs[:-1], gone)}))
    assert verdict.word is VerdictLabel.INCONCLUSIVE
    assert "seed 4 were lost (worker died" in verdict.comparisons[0].reason
    assert verdict.comparisons[0].further_seeds == 1


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            "budget",
            "The baseline ran out of time with seed 4. Run the study again to finish it.",
        ),
        (
            None,
            "The baseline was lost with seed 4 because its worker died. Run the study again to finish it.",
        ),
    ],
)
def test_a_run_that_shows_nothing_is_not_there(cause: str | None, told: str) -> None:
    gone = [
        run(name, 4, None, steps=0, environment={}, failure="it ended", cause=cause)
        for name in ("fp32", "fp16-mixed")
    ]
    whole = study({"fp16-mixed": [*losing(0.0)]})
    runs = (*(one for one in whole.runs if one.seed != 4), *gone)
    notes = judge(whole.model_copy(update={"runs": runs})).notes
    assert "The study is incomplete: 8 of 10 runs have a result." in notes
    assert told in notes
    assert not any("left out" in note for note in notes)


def test_lower_is_better_where_the_specification_says_so() -> None:
    worse = [value * 1.118 for value in BASELINE]
    metric = {"name": "hmean", "higher_is_better": False}
    assert only([*worse], metric=metric).word is VerdictLabel.FAIL
    assert only([*worse]).word is VerdictLabel.PASS


def test_the_thresholds_are_those_of_the_specification() -> None:
    limits = {"pass": 0.05, "marginal": 0.1}
    assert only([*losing(0.03)], thresholds=limits).word is VerdictLabel.PASS
    assert only([*losing(0.03)]).word is VerdictLabel.FAIL


def test_several_candidates_are_corrected_for_and_the_worst_decides() -> None:
    weak = losing(0.0045, wobble=0.0035)
    assert only([*weak]).word is VerdictLabel.PASS
    others = {f"c{i}": losing(0.03) for i in range(4)}
    verdict = judge(study({"weak": weak, **others}))
    assert verdict.comparisons[0].word is VerdictLabel.INCONCLUSIVE
    assert "On its own it would be PASS" in verdict.comparisons[0].reason
    assert verdict.word is VerdictLabel.FAIL


@pytest.mark.slow
def test_the_words_are_those_of_the_arrays() -> None:
    baseline, candidate = data(np.random.default_rng(0), 60, 5, 0.008, 0.005, candidates=3)
    found = claims(baseline, candidate, TERMS)
    expected = verdict_labels(Claims(*(holm(p) for p in found)))
    for i in range(len(baseline)):
        arms = {f"c{j}": candidate[i, j].tolist() for j in range(3)}
        verdict = judge(study(arms, baseline[i, 0].tolist()))
        assert [c.word for c in verdict.comparisons] == list(expected[i])


def test_further_seeds_are_told_and_shrink_with_the_noise() -> None:
    loud = only([*losing(0.002, wobble=0.01)]).comparisons[0]
    quiet = only([*losing(0.002, wobble=0.006)]).comparisons[0]
    assert loud.word is quiet.word is VerdictLabel.INCONCLUSIVE
    assert loud.further_seeds is not None
    assert quiet.further_seeds is not None
    assert loud.further_seeds > quiet.further_seeds >= 1
    assert f"About {loud.further_seeds} further seeds" in loud.reason
    assert any("second analysis" in note for note in only([*losing(0.002, wobble=0.01)]).notes)


def test_the_threshold_itself_is_too_close_to_tell() -> None:
    on_it = losing(0.01, [1.0, 1.0, 1.0, 1.0], wobble=0.004)
    found = judge(study({"fp16-mixed": on_it}, [1.0, 1.0, 1.0, 1.0])).comparisons[0]
    assert found.word is VerdictLabel.INCONCLUSIVE
    assert found.further_seeds is None
    assert "below 2% with 95% confidence" in found.reason
    assert "too close" in found.reason


def test_a_baseline_around_zero_has_no_shares() -> None:
    verdict = judge(study({"fp16-mixed": [0.1, -0.2, 0.15, 0.0]}, [0.2, -0.1, 0.1, -0.2]))
    assert verdict.word is VerdictLabel.INCONCLUSIVE
    assert "may be zero" in verdict.comparisons[0].reason


def test_seeds_that_change_nothing_are_told() -> None:
    verdict = only([*BASELINE])
    assert verdict.word is VerdictLabel.PASS
    assert any("no stronger than the verdict of a single run" in note for note in verdict.notes)


def test_runs_on_different_devices_are_told() -> None:
    mixed = study({"fp16-mixed": losing(0.0)})
    elsewhere = mixed.runs[0].model_copy(update={"environment": {"torch": "2.13", "device": "A"}})
    verdict = judge(mixed.model_copy(update={"runs": (elsewhere, *mixed.runs[1:])}))
    assert any("(A, 2.13; cpu, 2.13)" in note for note in verdict.notes)
    assert not any("device" in note for note in judge(mixed).notes)


def test_a_run_that_is_there_twice_counts_once() -> None:
    ignored = {"initial_weights": "w", "batch_order": "b", "curve": curve(0)}
    runs = tuple(
        run(name, seed, 0.88, **ignored) for name in ("fp32", "fp16-mixed") for seed in range(5)
    )
    same = study({"fp16-mixed": [*BASELINE]}).model_copy(update={"runs": runs})
    verdict = judge(same)
    assert verdict.word is VerdictLabel.INCONCLUSIVE
    assert verdict.comparisons[0].pairs == 1
    assert any("seed 1, 2, 3, 4 repeats an earlier run" in note for note in verdict.notes)
    broken = runs[-1].model_copy(update={"metrics": {}, "failure": "raised"})
    also = same.model_copy(update={"runs": (*runs[:-1], broken)})
    assert (
        judge(also).word is VerdictLabel.FAIL
    )  # that it broke counts, whatever the baseline repeats


def of_scripts(metrics: list[dict[str, float]]) -> Study:
    """Runs that say nothing of their weights, batches and losses."""
    nothing: dict[str, Any] = {"initial_weights": None, "batch_order": None, "curve": Curve()}
    runs = tuple(
        run(name, seed, None, **nothing, metrics=values)
        for name in ("fp32", "fp16-mixed")
        for seed, values in enumerate(metrics)
    )
    return study({"fp16-mixed": [0.0] * len(metrics)}).model_copy(update={"runs": runs})


@pytest.mark.parametrize(
    "beside",
    [{}, {"auc": math.nan}, {"train_runtime": 1.0}, {"steps_per_second": 2.0}],
    ids=["nothing", "NaN", "a clock", "a rate"],
)
def test_metrics_that_never_change_are_one_run(beside: dict[str, float]) -> None:
    varied = [{k: v * (seed + 1) for k, v in beside.items()} for seed in range(5)]
    verdict = judge(of_scripts([{"hmean": 0.88, **some} for some in varied]))
    (found,) = verdict.comparisons
    assert (found.word, found.pairs, found.further_seeds) == (VerdictLabel.INCONCLUSIVE, 1, None)
    assert "with seed 1, 2, 3, 4 equal those of an earlier seed to the last digit" in found.reason
    assert any("log a finer value next to the metric" in note for note in verdict.notes)


def test_a_saturated_metric_decides_nothing_without_a_finer_one() -> None:
    (found,) = judge(of_scripts([{"hmean": 1.0}] * 5)).comparisons
    assert found.word is VerdictLabel.INCONCLUSIVE
    assert "saturated" in found.reason
    finer = [{"hmean": 1.0, "loss": seed / 7} for seed in range(5)]
    assert judge(of_scripts(finer)).word is VerdictLabel.PASS


def test_coarse_metrics_that_coincide_all_count() -> None:
    """Without those that coincide, a rare bad run would weigh as much as the many good ones."""
    coarse = [0.98, 0.98, 0.97, 0.98, 0.90]
    verdict = judge(of_scripts([{"hmean": value} for value in coarse]))
    assert verdict.comparisons[0].pairs == 5


@pytest.mark.slow
def test_no_verdict_contradicts_its_interval() -> None:
    generator = np.random.default_rng(0)
    seen = dict.fromkeys(VerdictLabel, 0)
    for _ in range(60):
        baseline = generator.normal(1, 0.03, 12)
        losses = ((0.007, 0.004), (0.006, 0.012), (0.015, 0.003), (0.026, 0.005))
        arms = {
            str(mean): (baseline * (1 - generator.normal(mean, noise, 12))).tolist()
            for mean, noise in losses
        }
        for one in judge(study(arms, baseline.tolist())).comparisons:
            seen[one.word] += 1
            ends = {
                VerdictLabel.PASS: (-1, 0.01),
                VerdictLabel.MARGINAL: (0.01, 0.02),
                VerdictLabel.FAIL: (0.02, 1),
            }
            low, high = ends.get(one.word, (-1, 1))
            assert low <= one.low <= one.high <= high
    assert min(seen.values()) > 5  # each was there


def test_a_speed_whose_worker_died_is_not_measured() -> None:
    made = study({"fp16-mixed": losing(0.0)})
    lost = made.speeds[0].model_copy(update={"ratio": math.nan, "pairs": 0})
    verdict = judge(made.model_copy(update={"speeds": (lost,)}))
    (speed,) = (item for item in verdict.checklist if item.code == "speed")
    assert (speed.answer, speed.evidence) == ("unknown", "fp16-mixed: not measured")


def test_the_order_of_the_runs_does_not_matter() -> None:
    whole = study({"a": losing(0.004, wobble=0.004), "b": [*losing(0.0)[:4], None]})
    runs = list(whole.runs)
    random.Random(1).shuffle(runs)
    mixed = judge(whole.model_copy(update={"runs": tuple(runs)}))
    assert mixed.comparisons == judge(whole).comparisons


def test_nothing_yet_is_inconclusive() -> None:
    empty = Study(name="ocr", spec=spec(["fp16-mixed"], 5), runs=())
    verdict = judge(empty)
    assert verdict.word is VerdictLabel.INCONCLUSIVE
    assert verdict.comparisons[0].further_seeds == 3


def test_a_specification_without_a_metric_is_refused() -> None:
    broken = Study(name="ocr", spec={"baseline": {"name": "fp32"}}, runs=())
    with pytest.raises(RecordError, match="cannot be judged"):
        judge(broken)


def test_speed_memory_steps_and_gradients_are_told() -> None:
    base, own = only([*losing(0.0)]).efforts
    assert (base.candidate, own.candidate) == ("fp32", "fp16-mixed")
    assert own.speed == 1.18
    assert own.memory == pytest.approx(2.9 / 4.2)
    assert (own.steps, own.skipped) == (200, 10)
    assert own.norm_ratio == pytest.approx(1.0)
    assert (own.scale_low, own.scale_high) == (65536.0, 8 * 65536.0)
    assert base.scale_high == 1.0


def test_the_way_back_is_one_key_or_one_command() -> None:
    assert only([*losing(0.0)]).way_back == ("precision: fp32",)
    command = "python train.py --precision {precision} --seed {seed} --out {out}"
    verdict = only([*losing(0.0)], entry=None, command=command)
    assert verdict.way_back == ("python train.py --precision fp32 --seed 0 --out metrics.json",)
