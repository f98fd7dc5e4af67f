"""Specifications: what is written is what is run, and a mistake is named by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import ConfigError
from halfguard.validation.runs.task import run_tasks, speed_tasks
from halfguard.validation.spec import Spec
from tests.validation.helper import spec_of

PLAN = "kind: plan\nschema_version: 1\nislands: [{module: '0', reason: large}]\n"


def test_the_short_forms_say_the_same_as_the_long_ones() -> None:
    short = spec_of("healthy", candidates=["fp16-mixed guarded", "bf16-mixed"], seeds=3)
    retry = {"skip": {"on_nonfinite": "retry_fp32"}}
    long = spec_of(
        "healthy",
        baseline={"name": "fp32", "precision": "fp32"},
        candidates=[
            {"name": "fp16-mixed guarded", "precision": "fp16-mixed", "guard": retry},
            {"precision": "bf16-mixed"},
        ],
        seeds=[0, 1, 2],
        thresholds={"pass": "1%", "marginal": "2%", "speedup": "10%"},
        executor={"kind": "local"},
    )
    assert short == long


def test_the_dump_is_a_specification_in_the_users_keys() -> None:
    spec = spec_of("healthy", thresholds={"pass": "0.5%", "memory": "2 GB"})
    dumped = spec.dump()
    assert dumped["thresholds"]["pass"] == 0.005
    assert dumped["thresholds"]["memory"] == 2_000_000_000
    assert Spec.load(dumped) == spec


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/plan.yaml").write_text(PLAN)
    (tmp_path / "study/job.py").write_text("x = 1\n")
    (tmp_path / "study/spec.yaml").write_text(
        "name: s\nentry: job.py:job\nsteps: 1\nmetric: {name: a, higher_is_better: true}\n"
        "candidates: [{precision: fp16-mixed, plan: plan.yaml, guard: fp16_safe}]\n"
        "baseline: {precision: fp32, guard: {preset: fp16_safe, clip: {max_norm: 1.0}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = Spec.load("study/spec.yaml")
    base, candidate = run_tasks(spec)[:2]
    assert candidate.candidate == "fp16-mixed guarded with plan"
    assert candidate.setting.plan is not None
    assert candidate.setting.plan["islands"][0]["module"] == "0"
    assert candidate.setting.guard is not None
    assert candidate.setting.guard["clip"] == {"max_norm": 5.0, "norm_type": 2.0}
    assert base.setting.guard is not None
    assert base.setting.guard["clip"] == {"max_norm": 1.0, "norm_type": 2.0}
    assert base.setting.guard["accumulate"] == 2
    assert base.setting.guard["precision"] == "fp32"


@pytest.mark.parametrize("seeds", ["four", 4.5, True, {"count": 4}])
def test_seeds_are_a_number_or_a_list(seeds: object) -> None:
    with pytest.raises(ConfigError, match=r"seeds: a number of seeds such as 4, or a list such as"):
        spec_of("healthy", seeds=seeds)


@pytest.mark.parametrize("key", sorted(Spec.OTHER_NAMES))
def test_the_key_of_another_tool_is_answered_by_the_key_to_use(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of("healthy", **{key: 1})
    assert f"Instead of {key}, write {Spec.OTHER_NAMES[key]}." in caught.value.cure


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"metrics": {}}, "metrics"),
        ({"metric": {"name": "a"}}, "metric.higher_is_better"),
        ({"thresholds": {"pass": "3%"}}, "pass <= marginal"),
        ({"thresholds": {"pas": 0.1}}, "thresholds.pas"),
        ({"thresholds": {"pass": "x%"}}, "x"),
        ({"seeds": [1, 1]}, "seed must be unique"),
        ({"seeds": 0}, "seeds"),
        ({"candidates": []}, "candidates"),
        ({"candidates": ["fp32"]}, "name must be unique"),
        ({"candidates": ["fp16"]}, "candidates.0 (fp16)"),
        ({"candidates": ["bf16-mixed", "fp16-weights guarded"]}, "candidates.1"),
        ({"candidates": [{"precision": "fp16-mixed", "guard": "safe"}]}, "'safe' is neither"),
        ({"candidates": [{"precision": "fp16-mixed", "plan": "gone.yaml"}]}, "gone.yaml"),
        ({"candidates": [{"precision": "fp16-mixed", "guard": "fp16_safe"}]}, "batches per step"),
        ({"entry": None}, "entry and command"),
        ({"command": "train {precision} {seed} {out}"}, "entry and command"),
        ({"steps": None}, "steps"),
        ({"executor": "kubernetes"}, "executor.kind"),
        ({"budget": {"runs": 1}}, "budget.runs"),
    ],
)
def test_a_mistake_is_named_by_its_key(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_tasks(spec_of("healthy", **keys))
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"command": "train {precision} {seed}"}, "{out}"),
        ({"command": "train '{precision} {seed} {out}"}, "closing quotation"),
        ({"steps": 3}, "steps"),
        ({"candidates": ["fp16-mixed guarded"]}, "guard"),
    ],
)
def test_a_mistake_in_a_command_is_named(keys: dict[str, Any], named: str) -> None:
    whole = {"entry": None, "steps": None, "command": "train {precision} {seed} {out}"}
    assert spec_of("healthy", **whole).command
    with pytest.raises(ConfigError, match=named):
        spec_of("healthy", **(whole | keys))


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "\x00", "!!python/object:os.system {}"])
def test_what_is_no_specification_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        Spec.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        Spec.load(tmp_path / "gone.yaml")


def test_runs_come_seed_by_seed_and_a_budget_cuts_the_last() -> None:
    spec = spec_of("healthy", candidates=["fp16-mixed", "bf16-mixed"], seeds=[7, 3])
    order = [(task.seed, task.candidate) for task in run_tasks(spec)]
    names = ["fp32", "fp16-mixed", "bf16-mixed"]
    assert order == [(seed, name) for seed in (7, 3) for name in names]
    cut = spec_of("healthy", candidates=["fp16-mixed", "bf16-mixed"], budget={"runs": 4})
    assert len(run_tasks(cut)) == 4
    assert [task.candidate for task in speed_tasks(spec)] == names[1:]


CHANGES: list[dict[str, Any]] = [
    {"seeds": [5]},
    {"steps": 7},
    {"evaluation": "fp32"},
    {"metric": {"name": "loss", "higher_is_better": False}},
    {"candidates": [{"name": "fp16-mixed", "precision": "bf16-mixed"}]},
    {"candidates": [{"name": "fp16-mixed", "precision": "fp16-mixed", "guard": "default"}]},
    {"candidates": [{"name": "other", "precision": "fp16-mixed"}]},
]


@given(st.sampled_from(CHANGES), st.sampled_from(CHANGES))
def test_a_key_changes_exactly_with_what_determines_the_run(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    def key(keys: dict[str, Any]) -> str:
        return run_tasks(spec_of("healthy", **({"seeds": [0]} | keys)))[1].key

    assert key(one) != key({})
    assert (key(one) == key(two)) == (one == two)


def test_a_key_does_not_depend_on_what_does_not_matter() -> None:
    plain = run_tasks(spec_of("healthy"))[1].key
    for keys in ({"seeds": 9}, {"thresholds": {"pass": 0.002}}, {"executor": "ray"}, {"name": "x"}):
        assert run_tasks(spec_of("healthy", **keys))[1].key == plain


@pytest.mark.parametrize("seeds", [10**9, list(range(1001))])
def test_a_number_of_seeds_that_nobody_can_run_is_refused_at_once(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"seeds: .*at most 1,?000"):
        spec_of("healthy", seeds=seeds)
    assert len(spec_of("healthy", seeds=1000).seeds) == 1000
