"""Five FP32 and five FP16 runs, logged by each tracker's own package: the verdict is that of validate.

The runs are trained and logged in a process of their own, which prints the numbers that it logged last. The
same numbers go through ``hg.validate`` as a study whose command looks them up.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import halfguard as hg
from halfguard.comparison.compare import CompareOptions, compare
from halfguard.comparison.groups import read_runs
from halfguard.comparison.logged_run import LoggedRun
from halfguard.records.study import Verdict, VerdictLabel
from halfguard.validation.finished_runs import Result
from halfguard.validation.runs.commands import run_command
from halfguard.validation.runs.task import Task
from tests.comparison.writers.training import PRECISIONS, SEEDS, STEPS, Numbers
from tests.support.programs import captured

pytestmark = pytest.mark.slow

LOOK_UP = """
import json, pathlib, sys
precision, seed, out = sys.argv[1:]
numbers = json.loads(pathlib.Path("numbers.json").read_text())
pathlib.Path(out).write_text(json.dumps({"METRIC": numbers[precision][seed]}))
"""


class Logged(NamedTuple):
    """The log of one tracker: its folder, and the arguments and the metric for ``compare``."""

    tracker: str
    folder: Path
    places: tuple[str, str]
    metric: str
    numbers: Numbers


PLACES = {
    "tensorboard": ("{}/fp32", "{}/fp16", "val/loss"),
    "wandb": ("{}/wandb:precision=fp32", "{}/wandb:group=fp16", "val.loss"),
    "mlflow": ("sqlite:///{}/mlflow.db:experiment=fp32", "{}:experiment=fp16", "val_loss"),
    "lightning": ("{}/fp32", "{}/fp16", "val_loss"),
    "transformers": ("{}/fp32-*", "{}/fp16-*", "eval_loss"),
}

SEED_SOURCES = {
    "tensorboard": "name of the run",
    "wandb": "setting trainer.seed",
    "mlflow": "setting seed",
    "lightning": "setting seed",
    "transformers": "name of the run",
}


@pytest.fixture(scope="module")
def log_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Logged]:
    """Train and log ten runs with a tracker's own package, once for all tests."""
    return functools.cache(
        lambda tracker: write_log(tracker, tmp_path_factory.mktemp("logs") / tracker)
    )


@pytest.fixture(params=PLACES)
def logged(request: pytest.FixtureRequest, log_of: Callable[[str], Logged]) -> Logged:
    return log_of(request.param)


@pytest.fixture
def wandb_log(log_of: Callable[[str], Logged]) -> Path:
    return log_of("wandb").folder


def write_log(tracker: str, folder: Path) -> Logged:
    module = f"tests.comparison.writers.with_{tracker}"
    done = captured(sys.executable, "-m", module, folder, env={"HOME": str(folder.parent)})
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    numbers = {p: {int(seed): value for seed, value in of.items()} for p, of in printed.items()}
    first, second, metric = PLACES[tracker]
    places = first.format(folder), second.format(folder)
    return Logged(tracker, folder, places, metric, numbers)


class HereExecutor:
    """Run each command of a study from this process."""

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        for task in tasks:
            yield task, run_command(task)


def validated(numbers: Numbers, metric: str, folder: Path) -> Verdict:
    """Return the verdict of validate on these numbers."""
    folder.mkdir(exist_ok=True)
    (folder / "look_up.py").write_text(LOOK_UP.replace("METRIC", metric))
    (folder / "numbers.json").write_text(json.dumps(numbers))
    spec = {
        "name": "the same numbers",
        "command": f"{sys.executable} look_up.py {{precision}} {{seed}} {{out}}",
        "baseline": "fp32",
        "candidates": ["fp16"],
        "seeds": list(SEEDS),
        "metric": {"name": metric, "higher_is_better": False},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return hg.validate(spec, folder=folder / "study", executor=HereExecutor())


def test_the_verdict_is_that_of_validate_on_the_same_numbers(
    logged: Logged, tmp_path: Path
) -> None:
    result, _ = compare(logged.places, CompareOptions(logged.metric))
    expected = validated(logged.numbers, logged.metric, tmp_path / "validate")
    assert result.verdict.comparisons == expected.comparisons  # label, reason, interval, p-values
    assert result.verdict.word is expected.word is VerdictLabel.PASS
    found: Numbers = {}
    for run in result.runs:
        assert run.seed is not None
        assert run.value is not None
        found.setdefault(run.group, {})[run.seed] = run.value
    assert found == logged.numbers


def test_runs_are_read_as_they_were_logged(logged: Logged) -> None:
    result, groups = compare(logged.places, CompareOptions(logged.metric))
    assert [(group.name, len(group.runs)) for group in groups] == [("fp32", 5), ("fp16", 5)]
    last = {"lightning": 20, "transformers": 30}.get(logged.tracker, STEPS)
    assert {run.last_step for run in result.runs} == {last}
    assert {run.values for run in result.runs} == {3 if last < STEPS else 4}
    assert not any(run.problem for run in result.runs)
    assert {run.seed_source for run in result.runs} == {SEED_SOURCES[logged.tracker]}


def only(folder: Path) -> LoggedRun:
    (runs,) = read_runs(str(folder)).runs.values()
    (run,) = runs
    return run


def copy_of_one(log: Path, to: Path) -> Path:
    """Copy one run and return its file."""
    run = next(path for path in sorted((log / "wandb").iterdir()) if path.is_dir())
    shutil.copytree(run, to / run.name)
    return next((to / run.name).glob("*.wandb"))


def test_a_wandb_run_that_was_killed_is_not_finished(wandb_log: Path, tmp_path: Path) -> None:
    file = copy_of_one(wandb_log, tmp_path)
    whole = file.read_bytes()
    counts = set()
    for size in range(len(whole) // 4, len(whole), 11):  # as if killed at any moment
        file.write_bytes(whole[:size])
        run = only(tmp_path)
        counts.add(len(run.metrics["val.loss"].values) if "val.loss" in run.metrics else 0)
        assert run.failure is None
    assert counts >= {0, 1, 2, 3, 4}
    file.write_bytes(whole[: len(whole) // 2])
    assert "still running or was killed" in str(only(tmp_path).unfinished)


def test_a_damaged_wandb_file_is_not_finished(wandb_log: Path, tmp_path: Path) -> None:
    file = copy_of_one(wandb_log, tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert "is damaged (wrong checksum" in str(only(tmp_path).unfinished)


def test_an_unfinished_candidate_is_inconclusive(wandb_log: Path, tmp_path: Path) -> None:
    shutil.copytree(wandb_log / "wandb", tmp_path / "wandb", symlinks=True)
    (fp16, *_) = read_runs(f"{tmp_path / 'wandb'}:precision=fp16,trainer.seed=3").runs["wandb"]
    (file,) = Path(fp16.place).glob("*.wandb")
    file.write_bytes(file.read_bytes()[:-2000])
    places = [f"{tmp_path / 'wandb'}:precision={precision}" for precision in PRECISIONS]
    result, _ = compare(places, CompareOptions("val.loss"))
    (comparison,) = result.verdict.comparisons
    assert comparison.word is VerdictLabel.INCONCLUSIVE
    assert comparison.reason.startswith(
        "The runs with seed 3 are not finished (its wandb log has no end"
    )
    assert comparison.reason.endswith("Compare again when the runs have ended.")
