"""Assert that a job trains safely in 16 bits: every step finite, and no overflow swallowed.

An overflow that a lower loss scale cures is part of FP16 training and is allowed. One that no scale cures,
and one that turns into a wrong finite number, fails the assertion with its line and module.
"""

from __future__ import annotations

from typing import Any

from halfguard.errors import UsageError
from halfguard.numerics.finite import all_finite
from halfguard.precision_names import Precision, PrecisionName
from halfguard.step.random_state import capture_random_state, restore_random_state, seeded
from halfguard.tracing.auditing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.workload import TrainingStep, Workload

LOWEST_SCALE = 128.0  # of FP16; below it small gradients vanish


def assert_half_safe(
    workload: Workload, *, steps: int = 20, precision: PrecisionName = "fp16-mixed"
) -> None:
    """Train a copy of ``workload`` for ``steps`` steps; fail at the first that 16 bits make wrong.

    The first and the last step are audited for overflow that loss and gradients do not show. On a CPU, CUDA's
    autocast rules apply. The workload itself is not changed.
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
            f"{where}: the loss scale fell to {step.scaler.get_scale():g}, where small gradients vanish: "
            f"gradients overflow {step.precision} at any larger scale.\n"
            "Look for a loss that is summed instead of averaged; `halfguard probe` shows the ranges."
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
