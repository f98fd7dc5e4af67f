"""The checklist: yes only with evidence, no where the evidence says so, unknown where there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from halfguard.records.study import Curve, Speed, Study
from halfguard.validation.judgement.verdict import judge
from tests.validation.studies import curve, losing, study


def answers(made: Study) -> dict[str, str]:
    return {item.code: item.answer for item in judge(made).checklist}


def changed(made: Study, only: str = "fp16-mixed", **changes: Any) -> Study:
    runs = [
        run.model_copy(update=changes) if run.candidate == only and run.seed == 1 else run
        for run in made.runs
    ]
    return made.model_copy(update={"runs": tuple(runs)})


@pytest.fixture
def good() -> Study:
    limits = {"pass": 0.01, "marginal": 0.02, "speedup": 0.1, "memory": 3_000_000_000}
    return study({"fp16-mixed": losing(0.0)}, thresholds=limits)


def test_every_automatic_item_is_answered_from_a_complete_study(good: Study) -> None:
    found = answers(good)
    persons = {"full-run", "approved", "watched"}
    assert {code for code, answer in found.items() if answer == "person"} == persons
    assert {answer for code, answer in found.items() if code not in persons} == {"yes"}
    assert all(item.evidence for item in judge(good).checklist)


@pytest.mark.parametrize(
    ("changes", "code", "answer"),
    [
        ({"failure": "NaN"}, "quality", "no"),
        ({"steps": 39}, "paired", "no"),
        ({"initial_weights": "other"}, "paired", "no"),
        ({"batch_order": None}, "paired", "unknown"),
        ({"curve": curve(1, bad=range(20))}, "finite", "no"),
        ({"skipped": 40}, "finite", "no"),
        ({"peak_bytes": 3_100_000_000}, "memory", "no"),
        ({"curve": curve(1).model_copy(update={"grad_norm": (0.0,) * 40})}, "gradients", "no"),
    ],
)
def test_one_bad_run_is_enough_for_a_no(
    good: Study, changes: dict[str, Any], code: str, answer: str
) -> None:
    assert answers(good)[code] == "yes"
    assert answers(changed(good, **changes))[code] == answer


def test_a_baseline_that_did_not_finish_is_no_baseline(good: Study) -> None:
    assert answers(changed(good, only="fp32", failure="out of memory"))["baseline"] == "no"


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(1.12, 1.2, "yes"), (1.0, 1.05, "no"), (1.05, 1.2, "unknown")]
)
def test_a_speed_up_must_be_certain(good: Study, low: float, high: float, answer: str) -> None:
    speed = Speed(candidate="fp16-mixed", ratio=(low + high) / 2, low=low, high=high, pairs=9)
    assert answers(good.model_copy(update={"speeds": (speed,)}))["speed"] == answer


def test_what_was_not_measured_is_not_known(good: Study) -> None:
    bare = [run.model_copy(update={"curve": Curve(), "peak_bytes": None}) for run in good.runs]
    found = answers(good.model_copy(update={"runs": tuple(bare), "speeds": ()}))
    assert (found["gradients"], found["speed"], found["memory"]) == ("unknown",) * 3


def test_gradients_far_from_the_baselines_are_a_no(good: Study) -> None:
    norms = {run.seed: tuple(n / 3 for n in run.curve.grad_norm) for run in good.runs}
    small = [
        run.model_copy(
            update={"curve": run.curve.model_copy(update={"grad_norm": norms[run.seed]})}
        )
        if run.candidate != "fp32"
        else run
        for run in good.runs
    ]
    made = good.model_copy(update={"runs": tuple(small)})
    assert answers(made)["gradients"] == "no"
    effort = judge(made).efforts[1]
    assert effort.norm_ratio is not None
    assert math.isclose(effort.norm_ratio, 1 / 3)
