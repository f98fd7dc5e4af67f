"""Studies of a script that fails: results, user errors, and early stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from halfguard.errors import UsageError
from halfguard.records.study import VerdictLabel
from halfguard.validation.executors import lost_result, timed_out_result
from halfguard.validation.executors.worker import TaskReply, execute
from halfguard.validation.finished_runs import Result, parse_result
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import Spec
from halfguard.validation.study import run_study

SCRIPT = """
import json, pathlib, random, sys
precision, seed, out = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
written = json.dumps({"accuracy": 0.9 + random.Random(seed).gauss(0, 0.01)})
"""


class SequentialExecutor:
    """Runs commands one after another; the run ``hangs`` is stopped, as if the time budget had ended."""

    def __init__(
        self,
        hangs: tuple[str, int] | None = None,
        order: Callable[[Sequence[Task]], Sequence[Task]] = list,
    ) -> None:
        self.hangs, self.order, self.done = hangs, order, list[tuple[str, int]]()

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        for task in self.order(tasks):
            self.done.append((task.candidate, task.seed))
            if self.hangs == self.done[-1]:
                yield task, timed_out_result(task, 1, "it had been running for 7 s")
                return
            answer = TaskReply.model_validate_json(execute(task.model_dump_json(), 1))
            yield task, parse_result(task, answer.result_or_raise())


class NoResultExecutor:
    """Starts six runs that all end in the same way, without a result."""

    def __init__(self, ended: Callable[[Task], Result]) -> None:
        self.ended = ended

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        for task in tasks[:6]:
            yield task, self.ended(task)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a worker changes it
    return tmp_path


def spec_of(folder: Path, ending: str = "out.write_text(written)", **keys: Any) -> Spec:
    (folder / "script.py").write_text(SCRIPT + ending)
    values: dict[str, Any] = {
        "name": "script",
        "command": f"{sys.executable} {folder / 'script.py'} {{precision}} {{seed}} {{out}}",
        "baseline": "32",
        "candidates": ["16"],
        "metric": {"name": "accuracy", "higher_is_better": True},
    }
    return Spec.load(values | keys)


def when(condition: str, text: str) -> str:
    return f"if {condition}:\n    {text}\nelse:\n    out.write_text(written)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out.write_text('{\"accuracy\": null}')", "accuracy is nan"),
        ('out.write_text(\'{"accuracy": "NaN"}\')', "accuracy is nan"),
        ("out.write_text('{\"acc\": 1}')", "no metric 'accuracy'; it has 'acc'"),
        ("pass", "wrote no JSON to {out}"),
    ],
)
def test_one_bad_run_is_a_failure_of_its_candidate(folder: Path, text: str, message: str) -> None:
    spec = spec_of(folder, when("precision == '16' and seed == 1", text))
    first, again = SequentialExecutor(), SequentialExecutor()
    (found,) = judge(run_study(spec, folder / "study", first)).comparisons
    assert (found.word, found.broken, len(first.done)) == (VerdictLabel.FAIL, (1,), 10)
    assert message in found.reason
    run_study(spec, folder / "study", again)
    assert again.done == []  # it is a result, and is kept like any other


@pytest.mark.parametrize("text", ["pass", "out.write_text('{\"acc\": 1}')"])
def test_a_metric_that_no_run_has_is_a_mistake_and_names_the_run(folder: Path, text: str) -> None:
    script = SequentialExecutor()
    with pytest.raises(UsageError, match=r"^32 with seed 0: (.|\n)*accuracy\": 0.93"):
        run_study(spec_of(folder, text), folder / "study", script)
    assert script.done == [("32", 0), ("16", 0), ("32", 1)]
    assert list((folder / "study/runs").iterdir()) == []  # mended, it is run again


def test_a_metric_that_the_only_baseline_run_lacks_is_a_mistake_too(folder: Path) -> None:
    script = SequentialExecutor()
    with pytest.raises(UsageError, match=r"^32 with seed 0: "):
        run_study(spec_of(folder, "pass", seeds=1), folder / "study", script)
    assert script.done == [("32", 0)]


def test_a_metric_that_one_baseline_run_lacks_costs_its_seed(folder: Path) -> None:
    spec = spec_of(
        folder, when("precision == '32' and seed == 0", "out.write_text('{\"loss\": 1}')")
    )
    verdict = judge(run_study(spec, folder / "study", SequentialExecutor()))
    assert (verdict.word, verdict.comparisons[0].seeds) == (VerdictLabel.PASS, (1, 2, 3, 4))
    assert any("The baseline did not finish with seed 0" in note for note in verdict.notes)


def _candidates_first(tasks: Sequence[Task]) -> Sequence[Task]:
    return sorted(tasks, key=lambda task: task.candidate == "32")


@pytest.mark.parametrize("order", [list, _candidates_first])
def test_a_candidate_without_the_metric_fails_in_any_order(
    folder: Path, order: Callable[[Sequence[Task]], Sequence[Task]]
) -> None:
    spec = spec_of(folder, when("precision == '16'", "pass"))
    (found,) = judge(run_study(spec, folder / "study", SequentialExecutor(order=order))).comparisons
    assert (found.word, found.broken) == (VerdictLabel.FAIL, (0, 1, 2, 3, 4))
    assert "wrote no JSON to {out}" in found.reason


def test_a_run_that_was_cut_off_allows_no_pass_and_is_run_again(folder: Path) -> None:
    spec = spec_of(folder)
    first, again = SequentialExecutor(hangs=("16", 4)), SequentialExecutor()
    (found,) = judge(run_study(spec, folder / "study", first)).comparisons
    assert (found.word, found.pairs) == (VerdictLabel.INCONCLUSIVE, 4)
    assert "The runs with seed 4 were stopped by the time budget" in found.reason
    assert "running for 7 s" in found.reason
    assert judge(run_study(spec, folder / "study", again)).word is VerdictLabel.PASS
    assert again.done == [("16", 4)]


def test_a_run_that_was_never_begun_takes_nothing_from_the_others(folder: Path) -> None:
    study = run_study(spec_of(folder), folder / "study", SequentialExecutor(hangs=("32", 4)))
    verdict = judge(study)
    assert (verdict.word, verdict.comparisons[0].pairs) == (VerdictLabel.PASS, 4)
    assert any("8 of 10 runs have a result" in note for note in verdict.notes)


def test_a_baseline_that_never_starts_ends_the_study_and_is_quoted(folder: Path) -> None:
    script = SequentialExecutor()
    study = run_study(spec_of(folder, "sys.exit(f'no data for {seed}')"), folder / "study", script)
    assert len([name for name, _ in script.done if name == "32"]) == 3
    (found,) = judge(study).comparisons
    assert (found.word, found.further_seeds) == (VerdictLabel.INCONCLUSIVE, None)
    assert (
        "32 did not finish a run with any seed (seed 0: the command ended with exit code 1: no data"
        in found.reason
    )


@pytest.mark.slow
def test_a_baseline_that_fails_in_different_ways_is_run_to_the_end(folder: Path) -> None:
    script = SequentialExecutor()
    failing = "sys.exit('abcdefgh'[seed] if precision == '32' else 0)"
    (found,) = judge(run_study(spec_of(folder, failing), folder / "study", script)).comparisons
    assert (found.word, len(script.done)) == (VerdictLabel.INCONCLUSIVE, 10)
    assert (
        "32 did not finish a run with any seed (seed 0: the command ended with exit code 1: a)"
        in found.reason
    )
    script = SequentialExecutor()
    failing = "sys.exit('abcdefgh'[seed])"
    run_study(spec_of(folder, failing), folder / "study", script)
    assert len(script.done) == 10


@pytest.mark.parametrize(
    ("ended", "advice"),
    [
        (lambda task: timed_out_result(task, 1, "it hung"), "Run the study again with more time."),
        (lambda task: lost_result(task, "signal 9"), "Run the study again."),
    ],
)
def test_runs_without_a_result_do_not_stop_the_study(
    folder: Path, ended: Callable[[Task], Result], advice: str
) -> None:
    study = run_study(spec_of(folder), folder / "study", NoResultExecutor(ended))
    assert len(study.runs) == 6  # all that had begun are told
    (found,) = judge(study).comparisons
    assert found.word is VerdictLabel.INCONCLUSIVE
    assert found.reason.endswith(f"nothing to compare with. {advice}")


@pytest.mark.slow
@pytest.mark.parametrize("message", ["'the share is not mounted'", "'abcdefgh'[seed]"])
def test_runs_that_failed_in_an_outage_are_run_again(folder: Path, message: str) -> None:
    share = folder / "share"
    spec = spec_of(
        folder, when(f"not pathlib.Path({str(share)!r}).exists()", f"sys.exit({message})")
    )
    first, still, cured, after = (SequentialExecutor() for _ in range(4))
    (found,) = judge(run_study(spec, folder / "study", first)).comparisons
    assert found.reason.endswith("Fix the cause and run the study again.")
    run_study(spec, folder / "study", still)
    assert still.done == first.done  # it stops as early as before
    share.mkdir()
    assert judge(run_study(spec, folder / "study", cured)).word is VerdictLabel.PASS
    assert len(cured.done) == 10
    run_study(spec, folder / "study", after)
    assert after.done == []


@pytest.mark.slow
def test_an_interruption_after_an_outage_leaves_none_of_its_failures(folder: Path) -> None:
    share = folder / "share"
    spec = spec_of(
        folder, when(f"not pathlib.Path({str(share)!r}).exists()", "sys.exit('no share')")
    )
    run_study(spec, folder / "study", SequentialExecutor())
    share.mkdir()
    run_study(
        spec, folder / "study", SequentialExecutor(hangs=("16", 0))
    )  # of the baseline one run is there
    assert judge(run_study(spec, folder / "study", SequentialExecutor())).word is VerdictLabel.PASS


@pytest.mark.slow
def test_the_budget_of_time_reaches_a_script_that_hangs(folder: Path) -> None:
    hanging = when("precision == '16'", "import time; time.sleep(600)")
    spec = spec_of(folder, hanging, seeds=3, budget={"minutes": 0.2})
    began = time.monotonic()
    study = run_study(spec, folder / "study")
    assert time.monotonic() - began < 60
    cut = [run for run in study.runs if run.cause == "budget"]
    assert len(cut) == 1
    assert judge(study).word is VerdictLabel.INCONCLUSIVE
