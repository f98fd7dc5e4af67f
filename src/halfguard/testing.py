"""Assertions that a job trains safely in 16-bit precision, and as well as in FP32.

``assert_half_safe`` requires that every step is finite and that no overflow is swallowed. An overflow that a
lower loss scale prevents is a normal part of FP16 training and is allowed. Any other overflow fails the
assertion, which names the line and the module. ``assert_matches_fp32`` uses the verdict of ``halfguard
validate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from halfguard.errors import MissingExtraError, UsageError
from halfguard.numerics.finite import all_finite
from halfguard.precision_names import Precision, PrecisionName
from halfguard.records.study import RunResult, Study, VerdictLabel
from halfguard.step.random_state import capture_random_state, restore_random_state, seeded
from halfguard.tracing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.validation.runs.pairing import raise_if_unpaired
from halfguard.validation.runs.running import run_workload
from halfguard.validation.runs.task import Job, Setting, Task
from halfguard.validation.spec import Metric
from halfguard.workload import TrainingStep, Workload

__all__ = ["assert_half_safe", "assert_matches_fp32"]
LOWEST_SCALE = 128.0  # of FP16; below it small gradients vanish


def assert_half_safe(
    workload: Workload, *, steps: int = 20, precision: PrecisionName = "fp16-mixed"
) -> None:
    """Train a copy of ``workload`` for ``steps`` steps, and fail at the first step that is wrong.

    The first and the last step are audited for swallowed overflows. On a CPU, CUDA's autocast rules apply.
    The workload itself is not changed.
    """
    if steps < 1:
        raise UsageError(f"assert_half_safe(steps={steps}): at least one step is needed.")
    fresh, chosen = workload.fresh(), Precision(precision)
    fresh.store_weights_as(chosen)
    fresh.model.train()
    step = TrainingStep(fresh, chosen)
    with seeded(fresh.seed):
        for number, batch in enumerate(fresh.take(steps), 1):
            _train(step, batch, f"Step {number} of {steps}", audited=number in (1, steps))


def _train(step: TrainingStep, batch: Any, where: str, *, audited: bool) -> None:
    states = capture_random_state()
    loss = step.forward(batch)
    step.backward(loss)
    found = (one.coalesce() if one.is_sparse else one for one in (loss, *step.gradients()))
    finite = all_finite(found)
    if not finite or audited:
        after = capture_random_state()
        restore_random_state(states)  # the same dropout masks
        _raise_if_wrong(step, batch, where, finite=finite)
        restore_random_state(after)
    step.update()
    if step.scaler.is_enabled() and step.scaler.get_scale() < LOWEST_SCALE:
        raise AssertionError(
            f"{where}: the loss scale fell to {step.scaler.get_scale():g}, where small gradients "
            f"become 0. At any larger scale, gradients overflow {step.precision}.\nLook for a loss "
            "that is summed instead of averaged; `halfguard probe` shows the ranges."
        )


def _raise_if_wrong(step: TrainingStep, batch: Any, where: str, *, finite: bool) -> None:
    model = step.workload.model
    if not finite:
        culprit = find_first_nonfinite(lambda: step.loss_of(batch), model)
        if culprit is None:
            return  # finite without the loss scale: a lower one cures it
        raise AssertionError(
            f"{where} is not finite in {step.precision}, at any loss scale.\n{culprit}"
        )
    if findings := audit(lambda: step.loss_of(batch), model).findings:
        listed = "\n".join(map(str, findings))
        raise AssertionError(f"{where} is finite in {step.precision}, but wrong.\n{listed}")


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
    """Train ``job(seed)`` in FP32 and in ``precision``; fail unless the degradation is below ``within``.

    ``within`` is a fraction of the mean in FP32. ``metric`` is a metric that ``evaluate`` of the workload
    returns. Without ``evaluate``, ``loss`` is the training loss at the end. The assertion also fails if
    there are too few seeds for an answer; the error says how many seeds are likely to be enough.
    """
    try:
        from halfguard.validation.judgement.verdict import judge  # noqa: PLC0415 - it needs scipy
    except ModuleNotFoundError as error:
        raise MissingExtraError("assert_matches_fp32", "validate") from error
    seeds = list(seeds)
    if steps < 1 or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"assert_matches_fp32(steps={steps}, seeds={seeds}): steps must be at least 1, and "
            "each seed must occur once."
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
