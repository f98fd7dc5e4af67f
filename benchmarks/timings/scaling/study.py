"""A study of many runs whose results are made up: what remains is the work of the study itself."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.validation.helper import JOBS
from tests.validation.studies import curve

from benchmarks.timings.scaling.rows import Row, Table, timed
from halfguard.records.study import RunResult, Speed, Study
from halfguard.report.html import to_html
from halfguard.report.study import study_page
from halfguard.validation.finished_runs import Result
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import Spec
from halfguard.validation.study import run_study

STEPS = 100  # rows of each run's curve


class InstantExecutor:
    """Returns a result for each task at once; the candidate is exactly on a threshold."""

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        for task in tasks:
            yield task, _result(task)


def _result(task: Task) -> Result:
    if task.against is not None:
        return Speed(candidate=task.candidate, ratio=1.2, low=1.1, high=1.3, pairs=40)
    noise = random.Random(f"{task.candidate} {task.seed}").gauss(0, 0.05)
    mean = 0.8 if task.candidate == "fp32" else 0.792  # a loss of exactly 1% is never decided
    return RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics={"accuracy": mean + noise},
        steps=STEPS,
        curve=curve(task.seed, STEPS),
        duration=1.0,
        environment={"torch": "2", "device": "cpu"},
        initial_weights=f"w{task.seed}",
        batch_order=f"b{task.seed}",
    )


def _spec(runs: int) -> Spec:
    return Spec.load(
        {
            "name": "scale",
            "entry": f"{JOBS}:healthy",
            "candidates": ["fp16-mixed"],
            "seeds": runs // 2,
            "steps": STEPS,
            "metric": {"name": "accuracy", "higher_is_better": True},
        }
    )


def _run(runs: int, folder: Path) -> Study:
    return run_study(_spec(runs), folder, InstantExecutor())


def _row(runs: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        whole, study = timed(lambda: _run(runs, root / "a"))
        resume, _ = timed(lambda: _run(runs, root / "a"))
        size = (root / "a" / "study.json").stat().st_size
    judging, verdict = timed(lambda: judge(study))
    page, html = timed(lambda: to_html(study_page(study, verdict)))
    return {
        "runs": runs,
        "run the study, ms per run": 1e3 * whole / runs,
        "find finished runs, s": resume,
        "judge, s": judging,
        "page, s": page,
        "page, MB": len(html) / 1e6,
        "study.json, MB": size / 1e6,
    }


def tables(counts: Sequence[int] = (100, 300, 1000)) -> list[Table]:
    return [Table(f"A study, {STEPS} steps per run", [_row(runs) for runs in counts])]
