"""The tables of the five systems are those of the verdicts beside the examples."""

from __future__ import annotations

import pytest
from benchmarks.tables import studies
from tests.support.docs import ROOT

from halfguard.records.study import Verdict, VerdictLabel
from halfguard.validation.spec import Spec

SYSTEMS = ("accuracy_conditioning", "mmgcn", "sar_distillation", "audio_lora", "dbnet_ocr")


def verdict_of(system: str, study: str) -> Verdict:
    name = study.replace("study", "verdict")
    return Verdict.from_json((ROOT / "examples" / system / f"{name}.json").read_bytes())


def test_both_tables_are_those_of_the_verdicts() -> None:
    assert studies.update(check=True) == []


@pytest.mark.parametrize("study", ["study", "study_cured"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_verdict_is_that_of_its_study(system: str, study: str) -> None:
    spec = Spec.load(ROOT / "examples" / system / f"{study}.yaml")
    verdict = verdict_of(system, study)
    assert verdict.planned == len(spec.seeds) >= 5
    assert [one.candidate for one in verdict.comparisons] == [one.name for one in spec.candidates]
    assert (verdict.metric, verdict.passing) == (spec.metric.name, 0.01)
    (baseline, *_), steps = verdict.efforts, spec.steps
    assert steps is not None
    assert baseline.steps == steps * len(spec.seeds)


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_system_trains_in_fp16_as_it_is(system: str) -> None:
    words = {one.candidate: one.word for one in verdict_of(system, "study").comparisons}
    assert words["fp16-mixed"] is not VerdictLabel.PASS
