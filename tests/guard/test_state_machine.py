"""Random runs of a guard over one parameter; hypothesis chooses losses and gradients.

For every sequence of events, the invariants of the design hold after every step. CI runs a few hundred
sequences; ``scripts/soak guard 10000`` runs any number of them with the same code, and counts them.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn

from halfguard.errors import TrainingHaltedError
from halfguard.guard import policy
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.records import Action, Cause
from halfguard.step.nested import batch_leaves
from tests.guard.helper import frozen, inject, same
from tests.support.models import OPTIMIZERS

FLOOR, CEILING = 4.0, 2.0**12
APPLIED = {Action.APPLY, Action.RETRY}
COUNTS: Counter[str] = Counter()  # over all sequences, for the soak's last line


class One(nn.Module):
    """A model of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))


@dataclass(frozen=True)
class Batch:
    """Loss and gradient of one step: in half, and when it is repeated in FP32."""

    loss: float = 1.0
    grad: float = 0.5  # always positive, so that an applied step always moves the weight
    loss_fp32: float = 1.0
    grad_fp32: float = 0.5
    inputs: float = 1.0
    label: int = 0

    def tensors(self) -> dict[str, Any]:
        return {"x": torch.tensor([self.inputs]), "y": torch.tensor([self.label]), "self": [self]}


def loss_fn(model: Any, batch: dict[str, Any]) -> Tensor:
    [chosen] = batch["self"]
    model.calls += 1
    half = torch.is_autocast_enabled("cpu")
    loss, grad = (chosen.loss, chosen.grad) if half else (chosen.loss_fp32, chosen.grad_fp32)
    return inject(model.w, loss, grad, half=half)


def half(value: float) -> float:
    return torch.tensor(value).half().item()


@settings(deadline=None, suppress_health_check=list(HealthCheck))
class Run(RuleBasedStateMachine):
    """One guarded run; the streak is counted again here, independently of the guard."""

    @initialize(
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        on_nonfinite=st.sampled_from(["skip", "skip", "skip", "retry_fp32", "retry_fp32", "raise"]),
        max_consecutive=st.sampled_from([3, 5, 2, 1]),
        spike=st.sampled_from([None, {"sigma": 4.0}]),
        clip=st.sampled_from([None, {"max_norm": 0.3}]),
        recovery=st.sampled_from([None, {"every": 3, "max_rollbacks": 2}]),
        init=st.sampled_from([FLOOR, 64.0, CEILING]),
    )
    def begin(self, optimizer: str, init: float, **options: Any) -> None:
        self.optimizer_name = optimizer
        skip = {key: options.pop(key) for key in ("on_nonfinite", "max_consecutive")}
        scale = {"init": init, "floor": FLOOR, "growth_interval": 3}
        options["recovery"] = options["recovery"] and {
            **options["recovery"], "ladder": ["fp32", "lower_lr"]
        }  # fmt: skip
        self.config = GuardConfig.load(
            {"scale": scale, "skip": skip | {"max_grad_norm": 10.0}, **options}
        )
        self.fresh()
        COUNTS["sequences"] += 1

    def fresh(self) -> None:
        self.halted = False
        self.streak = self.rollbacks = self.applied = self.steps = 0
        self.weights_seen = [torch.ones(1)]
        self.build()

    def build(self) -> None:
        self.model = One()
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=5, gamma=0.9)
        self.guard = Guard(self.model, self.optimizer, self.config, scheduler=self.scheduler)

    def parts(self) -> list[Any]:
        return [self.model, self.optimizer, self.scheduler, self.guard]

    # -- events

    @precondition(lambda self: not self.halted)
    @rule(loss=st.sampled_from([0.5, 1.0, 1.25]), grad=st.sampled_from([0.25, 0.5, 1.0]))
    def healthy(self, loss: float, grad: float) -> None:
        self.step(Batch(loss, grad, loss, grad))

    @precondition(lambda self: not self.halted)
    @rule(count=st.integers(2, 6))
    def some_healthy(self, count: int) -> None:
        """Run enough steps to fill a window, to confirm a snapshot, or to let the scale grow."""
        for i in range(count):
            loss = 1.0 + i / 8
            if not self.halted:  # a window of equal losses gives a tight limit
                self.step(Batch(loss, loss / 2, loss, loss / 2))

    @precondition(lambda self: not self.halted)
    @rule(grad=st.sampled_from([20.0, 500.0, 2e4]), full=st.sampled_from([0.5, math.nan]))
    def large_gradient(self, grad: float, full: float) -> None:
        """Overflow in half if the scale is large; otherwise exceed the limit of the norm."""
        self.step(Batch(grad=grad, grad_fp32=full))

    @precondition(lambda self: not self.halted)
    @rule(
        grad=st.sampled_from([math.inf, math.nan, -math.inf]),
        full=st.sampled_from([0.5, math.inf, 50.0]),
    )
    def broken_gradient(self, grad: float, full: float) -> None:
        self.step(Batch(grad=grad, grad_fp32=full))

    @precondition(lambda self: not self.halted)
    @rule(
        loss=st.sampled_from([math.inf, math.nan, -math.inf]),
        grad=st.sampled_from([0.5, math.nan, math.inf]),
        full=st.sampled_from([1.0, math.nan]),
    )
    def forward_overflow(self, loss: float, grad: float, full: float) -> None:
        self.step(Batch(loss=loss, grad=grad, loss_fp32=full))

    @precondition(lambda self: not self.halted)
    @rule(inputs=st.sampled_from([math.inf, math.nan]), loss=st.sampled_from([1.0, math.nan]))
    def bad_inputs(self, inputs: float, loss: float) -> None:
        self.step(Batch(inputs=inputs, loss=loss, loss_fp32=loss, grad=math.nan))

    @precondition(lambda self: not self.halted)
    @rule()
    def every_label_ignored(self) -> None:
        self.step(Batch(label=-100, loss=math.nan, loss_fp32=math.nan, grad=math.nan))

    @precondition(lambda self: not self.halted)
    @rule(loss=st.sampled_from([1e4, 3e38]))
    def loss_spike(self, loss: float) -> None:
        self.step(Batch(loss=loss, loss_fp32=loss))

    @precondition(lambda self: not self.halted)
    @rule()
    def end_of_epoch(self) -> None:
        self.guard.end_epoch()

    @precondition(lambda self: not self.halted)
    @rule()
    def stop_and_resume(self) -> None:
        states = [frozen(part.state_dict()) for part in self.parts()]
        self.build()
        for part, state in zip(self.parts(), states, strict=True):
            part.load_state_dict(state)
        again = [frozen(part.state_dict()) for part in self.parts()]
        assert same(_without_fleeting(states), _without_fleeting(again))

    @precondition(lambda self: self.halted)
    @rule()
    def start_again(self) -> None:
        """Start the same run from the beginning, as a user does after a halt."""
        self.fresh()

    # -- one step, and its checks

    def step(self, batch: Batch) -> None:
        guard, before = self.guard, self.everything()
        scale = guard.scaler.get_scale()
        cause = self.expected_cause(batch, scale)
        wanted = self.expect(batch, cause, scale)
        COUNTS["steps"] += 1
        self.steps += 1
        try:
            outcome = guard.step(loss_fn, batch.tensors())
        except TrainingHaltedError:
            self.halted = True
        if self.halted:
            COUNTS[f"halt: {cause}"] += 1
            assert wanted is Action.HALT or not before["ready"]
            assert same(before["weights"], self.everything()["weights"])
            return
        COUNTS[f"{outcome.action}: {cause}"] += 1
        assert outcome.action is wanted
        self.check_outcome(batch, outcome, cause, scale, before)

    def expected_cause(self, batch: Batch, scale: float) -> Cause | None:
        in_half = self.guard.config.precision == "fp16-mixed"
        loss = batch.loss if in_half else batch.loss_fp32
        grad = half(batch.grad * scale) / scale if in_half else batch.grad_fp32
        return self.cause(batch, loss, grad)

    def cause(self, batch: Batch, loss: float, grad: float) -> Cause | None:
        limits = policy.next_limits(self.guard._policy, self.guard.config)
        if not math.isfinite(loss):
            bad = batch.label == -100 or not math.isfinite(batch.inputs)
            return Cause.BAD_BATCH if bad else Cause.FORWARD_OVERFLOW
        if not math.isfinite(grad):
            return Cause.GRADIENT_OVERFLOW
        if loss > limits.loss:
            return Cause.LOSS_SPIKE
        return Cause.GRADIENT_SPIKE if abs(grad) > limits.grad_norm else None

    def expect(self, batch: Batch, cause: Cause | None, scale: float) -> Action:
        """Return the action that the design demands; count the streak."""
        skip = self.config.skip
        if cause is None:
            self.streak = 0
            return Action.APPLY
        calibrating = cause is Cause.GRADIENT_OVERFLOW and scale > FLOOR
        calibrating &= self.guard.config.precision == "fp16-mixed"
        nonfinite = cause in policy.NONFINITE
        if nonfinite and skip.on_nonfinite == "raise" and not calibrating:
            return Action.HALT
        if nonfinite and skip.on_nonfinite == "retry_fp32":
            if self.cause(batch, batch.loss_fp32, batch.grad_fp32) is None:
                self.streak = 0
                return Action.RETRY
            calibrating = False  # FP32 has no loss scale
        self.streak += not calibrating
        if self.streak < skip.max_consecutive:
            return Action.SKIP
        recovery = self.config.recovery
        if recovery is None or self.rollbacks >= recovery.max_rollbacks + len(recovery.ladder):
            return Action.HALT
        return Action.ROLL_BACK

    def check_outcome(
        self,
        batch: Batch,
        outcome: StepOutcome,
        cause: Cause | None,
        scale: float,
        before: dict[str, Any],
    ) -> None:
        after, new_scale = self.everything(), self.guard.scaler.get_scale()
        assert outcome.applied == (outcome.action in APPLIED)
        assert outcome.scale == scale
        assert (outcome.cause is None) == (cause is None)
        if outcome.action is Action.ROLL_BACK:
            self.rollbacks += 1
            self.streak = 0
            assert any(same(self.model.w.detach(), seen) for seen in self.weights_seen)
            return
        if outcome.action in APPLIED:
            self.applied += 1
            self.weights_seen.append(self.model.w.detach().clone())
            assert not same(before["weights"], after["weights"])
            assert after["buffers"]["calls"] == before["buffers"]["calls"] + 1
        else:
            assert same(before["weights"], after["weights"])
            assert same(before["buffers"], after["buffers"])
            assert same(before["scheduler"], after["scheduler"])
            assert self.same_optimizer(before["optimizer"], after["optimizer"])
        in_fp32 = self.cause(batch, batch.loss_fp32, batch.grad_fp32)
        retried = self.config.skip.on_nonfinite == "retry_fp32" and cause in policy.NONFINITE
        if retried and in_fp32 in policy.NONFINITE:
            assert new_scale == scale, "the scale is not the cause if FP32 fails as well"
        elif cause is Cause.GRADIENT_OVERFLOW:
            assert new_scale == max(scale / 2, FLOOR)
        elif cause is not None:
            assert new_scale == scale, "only an overflow of gradients lowers the scale"
            assert after["scaler"] == before["scaler"]
        else:
            assert new_scale in {scale, min(scale * 2, CEILING)}

    def everything(self) -> dict[str, Any]:
        return {
            "weights": self.model.w.detach().clone(),
            "buffers": frozen(dict(self.model.named_buffers())),
            "optimizer": frozen(self.optimizer.state_dict()),
            "scheduler": frozen(self.scheduler.state_dict()),
            "scaler": self.guard.scaler.state_dict(),
            "ready": self.guard._recovery is not None and self.guard._recovery.ready,
        }

    @staticmethod
    def same_optimizer(before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Compare bitwise; a fused optimizer that skips its first step may create its state, all zeros."""
        if before["state"] or not after["state"]:
            return same(before, after)
        zeros = (not t.any() for t in after["state"][0].values() if isinstance(t, Tensor))
        return all(zeros) and same(before["param_groups"], after["param_groups"])

    @invariant()
    def the_design_holds(self) -> None:
        if not hasattr(self, "guard"):
            return
        assert FLOOR <= self.guard.scaler.get_scale() <= CEILING
        assert self.model.w.isfinite().all()
        for state in self.optimizer.state.values():
            assert all(t.isfinite().all() for t in state.values() if isinstance(t, Tensor))
        recovery, policy_state = self.config.recovery, self.guard._policy
        most = 0 if recovery is None else recovery.max_rollbacks
        assert policy_state.rollbacks <= most
        assert self.rollbacks <= most + (len(recovery.ladder) if recovery else 0)
        total = self.guard.summary()
        assert (total.steps, total.applied) == (self.steps, self.applied)
        if not self.halted:
            assert total.rollbacks == self.rollbacks
            assert policy_state.streak == self.streak < self.config.skip.max_consecutive
        numbers = list(batch_leaves(asdict(policy_state)))
        assert all(type(number) in {int, float, bool} for number in numbers), "plain"
        assert all(map(math.isfinite, numbers))


def _without_fleeting(states: list[Any]) -> list[Any]:
    """Remove the counters of recovery: a resumed run has no snapshots and starts them again."""
    *others, guard = states
    return [*others, {key: value for key, value in guard.items() if key != "recovery"}]


def run_sequences(count: int, steps: int = 30) -> None:
    options = settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    with (
        patch("halfguard.guard.stepping.stepper.CEILING", CEILING),
        patch.multiple("halfguard.guard.spikes", WINDOW=6, WARM_UP=3),
    ):
        run_state_machine_as_test(Run, settings=options)  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
def test_random_runs_keep_every_invariant() -> None:
    logging.getLogger("halfguard").disabled = True
    try:
        run_sequences(150)
    finally:
        logging.getLogger("halfguard").disabled = False


if __name__ == "__main__":
    logging.getLogger("halfguard").disabled = True
    run_sequences(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    for what, number in sorted(COUNTS.items()):
        print(f"{number:9,d}  {what}")
