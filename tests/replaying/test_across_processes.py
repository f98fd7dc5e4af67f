"""Incidents of one process are replayed in another, from the folder and the ENTRY alone."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from benchmarks.models.zoo import line_of

from halfguard.records.autopsy import Autopsy
from tests.replaying.jobs import CASES, INCURABLE, Case
from tests.support.docs import ROOT
from tests.support.forks import forked_python

pytestmark = pytest.mark.slow
CURABLE = [case for case in CASES if case.plant.name not in INCURABLE]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")

    def run(module: str) -> str:
        command = [forked_python(), "-W", "ignore", "-m", module, str(folder)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    run("tests.replaying.capture")
    lines = map(json.loads, run("tests.replaying.replay_captured").splitlines())
    return {line["name"]: line for line in lines}


def autopsy_of(results: dict[str, Any], case: Case) -> Autopsy:
    return Autopsy.from_json(results[case.name]["autopsy"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients_are_bitwise_the_same(case: Case, results: dict[str, Any]) -> None:
    assert results[case.name]["same_gradients"]
    # Where all numbers of the incident are NaN, replay cannot know that the gradients are equal.
    expected = "bitwise" if results[case.name]["comparable"] else "same fault"
    assert autopsy_of(results, case).reproduced == expected


@pytest.mark.parametrize("case", CURABLE, ids=str)
def test_the_producer_is_named(case: Case, results: dict[str, Any]) -> None:
    culprit, plant = autopsy_of(results, case).culprit, case.plant
    found = culprit.op, culprit.module, culprit.phase, culprit.kind
    assert found == (plant.op, plant.module, plant.phase, plant.kind), culprit
    assert (culprit.file, culprit.line) == line_of(plant), culprit


@pytest.mark.parametrize("case", CURABLE, ids=str)
def test_the_recommended_cure_was_run_and_works_when_applied(
    case: Case, results: dict[str, Any]
) -> None:
    autopsy = autopsy_of(results, case)
    assert autopsy.cure is not None, autopsy.trials
    assert autopsy.cure.trial in {trial.name for trial in autopsy.trials if trial.good}
    assert results[case.name]["cured"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_are_blamed_where_they_are_to_blame(case: Case, results: dict[str, Any]) -> None:
    autopsy = autopsy_of(results, case)
    assert (autopsy.samples, autopsy.micro_batch) == (case.samples, case.micro_batch)


@pytest.mark.parametrize("case", [c for c in CASES if c not in CURABLE], ids=str)
def test_where_nothing_helps_no_cure_is_recommended(case: Case, results: dict[str, Any]) -> None:
    autopsy = autopsy_of(results, case)
    assert autopsy.cure is None
    assert autopsy.trials
    assert not any(trial.good for trial in autopsy.trials)
