"""Assert that a job trained in 16 bits is as good as in FP32, by the verdict of ``halfguard validate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from halfguard.errors import MissingExtraError, UsageError
from halfguard.precision_names import PrecisionName
from halfguard.records.study import RunResult, Study
from halfguard.records.verdict import VerdictLabel
from halfguard.step.random_state import seeded
from halfguard.validation.runs.pairing import raise_if_unpaired
from halfguard.validation.runs.running import run_workload
from halfguard.validation.runs.task import Job, Setting, Task
from halfguard.validation.sections import Metric
from halfguard.workload import Workload


def assert_matches_fp32(
    job: Callable[[int], Workload],
    *,
    steps: int,
    seeds: Iterable[int] = range(5),
    precision: PrecisionName = "fp16-mixed",
    metric: str = "loss",
    higher_is_better: bool = False,
    within: float = 0.01,
) -> None:
    """Train ``job(seed)`` in FP32 and in ``precision``; fail unless it is shown to lose less than ``within``.

    ``within`` is a share of FP32's mean. ``metric`` is what the workload's ``evaluate`` returns; ``loss``
    without one is the training loss at the end. Too few seeds for an answer fail too, and say how many
    would do.
    """
    try:
        from halfguard.validation.judgement.verdict import judge  # noqa: PLC0415 - it needs scipy
    except ModuleNotFoundError as error:
        raise MissingExtraError("assert_matches_fp32", "validate") from error
    seeds = list(seeds)
    if steps < 1 or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"assert_matches_fp32(steps={steps}, seeds={seeds}): at least one step, and each seed once."
        )
    runs = [_run(job, name, seed, steps, metric) for seed in seeds for name in ("fp32", precision)]
    raise_if_unpaired(runs, "fp32")
    study = Study(
        name="assert_matches_fp32",
        spec={
            "baseline": {"name": "fp32", "precision": "fp32"},
            "candidates": [{"name": precision, "precision": precision}],
            "seeds": seeds,
            "metric": Metric(name=metric, higher_is_better=higher_is_better).model_dump(),
            "thresholds": {"pass": within, "marginal": 2 * within},
        },
        runs=tuple(runs),
    )
    (found,) = judge(study).comparisons
    if found.word is not VerdictLabel.PASS:
        raise AssertionError(
            f"{precision} against fp32 over {len(seeds)} seeds: {found.word}. {found.reason}"
        )


def _run(
    job: Callable[[int], Workload], precision: PrecisionName, seed: int, steps: int, metric: str
) -> RunResult:
    with seeded(seed):
        workload = job(seed)
    described = Job(
        entry=None, command=None, steps=steps, evaluation="as-trained", metric=metric, files={}, versions=""
    )  # fmt: skip
    setting = Setting(precision=precision)
    return run_workload(
        Task(candidate=precision, setting=setting, seed=seed, job=described, folder=""), workload
    )
