"""One training step, guarded: every update is applied, or truthfully not, and nothing is poisoned.

The guard does what a careful loop does (autocast, scaled backward, unscale, clip, step, new scale, zero)
and decides on the device whether the update may happen (``gate``). What it saw is a row of four numbers;
the policy reads that row, at once where the answer is on the host anyway, a few steps later where waiting
for it would stall the device, and says what else is to be done: repeat the step in FP32, return to a
snapshot, or stop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.dist.wrapping import unwrapped
from halfguard.errors import UsageError
from halfguard.guard import policy
from halfguard.guard.agreement.fault_report import inquire
from halfguard.guard.config import GuardConfig
from halfguard.guard.halt_message import halted, tried
from halfguard.guard.protocols import Average, Scheduler
from halfguard.guard.recorder import Chronicle, Report
from halfguard.guard.recovery.recovery import Recovery
from halfguard.guard.scheduler_and_ema import Followers
from halfguard.guard.step_batches import LossFunction, MicroBatch, Window, loss_of
from halfguard.guard.stepping.gate import read
from halfguard.guard.stepping.mailbox import Mailbox
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.guard.stepping.stepper import Stepper
from halfguard.precision.modes import autocast
from halfguard.precision.plans import apply_plan
from halfguard.records import Action, Cause, Summary
from halfguard.step.random_state import (
    capture_random_state,
    portable_random_state,
    restore_random_state,
)

# Steps after which a report is read where reading it at once would stall the device.
_LAG = 2


class Guard:
    """Guards a model and its optimizers; see the how-to pages for both forms of use.

    ``config`` is a preset's name, a YAML file, a mapping or a ``GuardConfig``. ``scheduler`` and ``ema``
    are advanced only when a step was applied. ``run_dir`` receives the journal and the incidents; ``entry``
    names the function that describes the job, so that ``halfguard replay`` finds it by itself.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        scheduler: Scheduler | None = None,
        ema: Average | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
    ) -> None:
        self.model = model
        self.optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self.config = self._given = GuardConfig.load(config)
        self._followers = Followers(model, self.optimizers, scheduler, ema)
        if self.config.plan is not None:
            apply_plan(model, self.config.plan)
        self._stepper = Stepper(model, self.optimizers, self.config)
        self.scaler = self._stepper.scaler
        self.epoch = 0
        self.step_index = 0  # update attempts so far
        self.batch_index = 0  # batches of this epoch so far
        self._window = Window()
        self._opened = False
        self._policy = policy.State()
        on_host = self._waits or self._stepper.device.type == "cpu"
        self._mailbox: Mailbox[Report] = Mailbox(0 if on_host else _LAG)
        self._chronicle = Chronicle(self.config, self._stepper.device, run_dir, entry)
        self._recovery = self._make_recovery(run_dir)

    # -- the callable form

    def step(self, loss_fn: LossFunction, batch: Any, *, about: Any = None) -> StepOutcome:
        """Forward, backward and, when ``accumulate`` batches are complete, the update.

        ``about`` is what the journal shall say of this batch if it turns out to be bad.
        """
        self._open()
        repeatable = (
            self.config.skip.on_nonfinite == "retry_fp32" or self._chronicle.incidents is not None
        )
        micro = MicroBatch(batch, about, loss_fn, capture_random_state() if repeatable else None)
        with self._stepper.micro_batch(self._window):
            with self.autocast():
                loss = loss_of(loss_fn(self.model, batch))
            self._backward(loss, micro)
        if len(self._window.micro_batches) < self.config.accumulate:
            return StepOutcome()
        return self._update(self.optimizers)

    # -- the form for a loop that keeps its own forward pass

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for a forward pass; asking for it opens a step, unless the model is in eval mode."""
        # An evaluation opens no step: one rank may do it alone, and opening may ask the others.
        if torch.is_grad_enabled() and any(part.training for part in self.model.modules()):
            self._open()
        return autocast(self.config.precision, self._stepper.device.type)

    def backward(self, loss: Tensor, *, batch: Any = None, about: Any = None) -> None:
        """Scaled backward pass of one micro-batch, whose loss is divided by ``accumulate``."""
        if self.config.skip.on_nonfinite == "retry_fp32":
            raise UsageError(
                "skip.on_nonfinite='retry_fp32' repeats a step, and backward(loss) has no forward pass "
                "to repeat.",
                cure="Call guard.step(loss_fn, batch), or choose skip.on_nonfinite='skip'.",
            )
        self._open()
        self._backward(loss_of(loss), MicroBatch(batch, about))

    def update(self, optimizer: Optimizer | None = None) -> StepOutcome:
        """Unscale, measure, clip, decide, apply, set the new scale, and clear the gradients.

        With several optimizers, ``optimizer`` names the one whose turn it is; the scale is set once all
        of them had theirs.
        """
        if not self._window.micro_batches:
            raise UsageError(
                "update() was called without a backward() since the last one.",
                cure="Take turns: backward() and update(optimizer) for one, then for the other; or call "
                "update() once for all.",
            )
        if self._window.held_back:
            raise UsageError(
                f"{len(self._window.micro_batches)} of {self.config.accumulate} micro-batches were made by "
                "step(), which lets ranks reduce gradients with the last one; update() comes too early.",
                cure="Leave the step open: the next epoch's first batches complete it.",
            )
        return self._update(self.optimizers if optimizer is None else [optimizer])

    # -- between steps

    def end_epoch(self) -> Summary:
        """Close an epoch: its counts go to the log and the journal, and are returned."""
        self._settle(everything=True)
        summary = self._chronicle.end_epoch(self.epoch)
        self.epoch += 1
        self.batch_index = 0
        return summary

    def summary(self) -> Summary:
        """What happened since the guard was made; among several ranks, as far as it has been judged."""
        self._settle(everything=self._stepper.alone)  # one rank may ask by itself
        return self._chronicle.tally.summary()

    def close(self) -> Summary:
        """Bring everything to the journal; returns the counts of the whole run."""
        self._settle(everything=True)
        if self._recovery is not None:
            self._recovery.close()
        return self._chronicle.close()

    def state_dict(self) -> dict[str, Any]:
        """The guard's own state and that of the random generators; model and optimizer are yours to save."""
        self._settle(everything=True)
        if self._window.micro_batches:
            raise UsageError(
                f"A step is open: {len(self._window.micro_batches)} of {self.config.accumulate} "
                "micro-batches are done, and their gradients belong to no state_dict.",
                cure="Save after a call whose outcome.action is not 'accumulate'.",
            )
        return self._own_state() | {
            "scaler": self.scaler.state_dict(),
            "rng": portable_random_state(capture_random_state()),
        }

    def _own_state(self) -> dict[str, Any]:
        return {
            "policy": asdict(self._policy),
            "tally": self._chronicle.state_dict(),
            "counters": {"epoch": self.epoch, "step": self.step_index, "batch": self.batch_index},
            "remedy": None if self.config == self._given else self.config.model_dump(mode="json"),
            "held": self._followers.held,
            "recovery": None if self._recovery is None else self._recovery.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken, random generators included."""
        self.scaler.load_state_dict(dict(state["scaler"]))
        self._load_own_state(state)
        restore_random_state(state["rng"])
        if self._recovery is not None:
            self._recovery.start_anew()

    def resume(self) -> bool:
        """Go on from the last good snapshot in ``run_dir``, if there is one; call it before the first step.

        Model, optimizers, scheduler, average, scaler, counters and random generators are as they were
        then; ``epoch``, ``batch_index`` and ``step_index`` say where in the data that was. Every rank
        calls it.
        """
        rules = self.config.recovery
        if self._recovery is None or rules is None or rules.store != "disk":
            raise UsageError(
                "There are no snapshots to resume from: this guard keeps none on disk.",
                cure="Set recovery.store to 'disk' and pass run_dir.",
            )
        run = self._recovery.resume()
        if run is not None:
            self._load_own_state(run)
            self._stepper.replicas.start_anew()
        return run is not None

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        remembered: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in state["policy"].items()
        }
        self._policy = policy.State(**remembered)
        self._chronicle.tally.load_state_dict(state["tally"])
        counters = state["counters"]
        self.epoch, self.step_index = counters["epoch"], counters["step"]
        self.batch_index = counters["batch"]
        if state["remedy"] is not None:  # in force when the state was taken; otherwise yours holds
            self.reconfigure(GuardConfig.load(state["remedy"]))
        self._followers.held = state["held"]
        if self._recovery is not None and state["recovery"] is not None:
            self._recovery.load_state_dict(state["recovery"])

    def _make_recovery(self, run_dir: str | os.PathLike[str] | None) -> Recovery | None:
        if self.config.recovery is None:
            return None
        return Recovery(
            unwrapped(self.model),
            self.optimizers,
            {"scaler": self.scaler, **self._followers.stateful()},
            self.config,
            Path(run_dir) if run_dir else None,
            self._own_state,
            self._stepper.private if not self._stepper.alone else frozenset(),
        )

    def reconfigure(self, config: GuardConfig) -> None:
        """Go on with another configuration: a remedy, or one's own decision in mid-run."""
        self.config = config
        self._stepper.reconfigure(config)

    # -- one step

    @property
    def _waits(self) -> bool:
        """Whether the host waits for the answer before it steps.

        torch does for every optimizer that is not fused; retry, raise and a weight average need to.
        """
        needed = self.config.skip.on_nonfinite != "skip" or self._followers.ema is not None
        return needed or not self._stepper.fused

    @property
    def _compares_ranks(self) -> bool:
        """Whether ranks ask each other at this step if they are still equal."""
        desync = self.config.desync
        return desync is not None and self.step_index % desync.every == 0

    def _open(self) -> None:
        if not self._opened:
            changed = self._stepper.take_stock()
            if self._recovery is not None:
                if changed:
                    self._recovery.outgrown()
                self._recovery.begin()
            self._stepper.buffers.keep()
            self._opened = True

    def _backward(self, loss: Tensor, micro: MicroBatch) -> None:
        part = loss if self.config.accumulate == 1 else loss / self.config.accumulate
        try:
            self._stepper.backward(part, micro, self._window, check=self._compares_ranks)
        except BaseException:
            # A loop may catch this, as when memory ran out, and go on with the next batch.
            self._stepper.discard()
            self._window, self._opened = Window(), False
            raise
        finally:
            self.batch_index += 1

    def _update(self, optimizers: Sequence[Optimizer]) -> StepOutcome:
        limits = policy.limits(self._policy, self.config)
        row, refused, gradients = self._stepper.examine(
            optimizers, self._window, limits, check=self._compares_ranks
        )
        outcome = StepOutcome(row, limits, gradients)
        turn = frozenset(map(id, optimizers))
        where = (self.step_index, self.epoch, self.batch_index - 1)
        self._mailbox.post(row, Report(*where, limits, turn, self._window, outcome))
        known = bool(refused.item()) if self._waits else None
        self._stepper.apply(optimizers, gradients, refused, known)
        if self._mailbox.lag:
            self._followers.advance(turn)  # what was skipped is found out later, and made up for
        self._window, self._opened = Window(), False
        self.step_index += 1
        self._settle()
        return outcome

    # -- judging what was seen

    def _settle(self, *, everything: bool = False) -> None:
        for values, report in self._mailbox.collect(everything=everything):
            self._judge(read(values, report.limits), report)

    def _judge(self, seen: policy.Signals, report: Report) -> None:
        cause = policy.cause_of(seen)
        if cause is not None:
            seen = self._look_into(cause, seen, report)
        decision, self._policy = policy.decide(self._policy, seen, self.config)
        exact = not self._mailbox.lag
        self._chronicle.capture(
            unwrapped(self.model), self.config, decision, seen, report, exact=exact
        )
        divergence = report.outcome.divergence
        if divergence is not None and decision.action is Action.SKIP:
            self._stepper.replicas.take_over(divergence)
        if decision.action is Action.RETRY:
            decision, seen = self._retry(decision, seen, report)
        if decision.action is Action.ROLL_BACK and not (self._recovery and self._recovery.ready):
            decision = replace(decision, action=Action.HALT)
        report.outcome.settle(decision, seen)
        if decision.action in {Action.APPLY, Action.RETRY}:
            if not self._mailbox.lag:
                self._followers.advance(report.turn)
        elif self._mailbox.lag:
            self._followers.make_up_for(report.turn)
        row = self._chronicle.note(decision, seen, report, self._note(decision, report))
        if row is not None and decision.action is Action.HALT:
            self._chronicle.journal.flush()
            raise halted(row, streak=self._policy.streak)
        if self._recovery is not None:
            self._recover(decision)

    def _look_into(self, cause: Cause, seen: policy.Signals, report: Report) -> policy.Signals:
        gradients, replicas = report.outcome.gradients, self._stepper.replicas
        inquest = inquire(cause, report.window, gradients, replicas, self.config.ignore_index)
        report.outcome.explain(inquest)
        return replace(seen, batch_ok=inquest.batch_ok, majority=inquest.source is not None)

    def _retry(
        self, decision: policy.Decision, seen: policy.Signals, report: Report
    ) -> tuple[policy.Decision, policy.Signals]:
        assert decision.cause is not None  # noqa: S101 - a retry has a cause
        row, gradients = self._stepper.repeat(report.window)
        again = replace(read(row.tolist(), report.limits), batch_ok=seen.batch_ok)
        decision, self._policy = policy.decide_retried(
            self._policy, again, decision.cause, self.config
        )
        if decision.action is Action.RETRY:
            self._stepper.apply_repeated(gradients)
        else:
            self._stepper.discard()
        return decision, replace(again, scale=seen.scale)

    def _give_up_what_is_under_way(self, decision: policy.Decision) -> None:
        """Steps that were taken before the host saw the fault were undone by going back."""
        undone = policy.Decision(Action.ROLL_BACK, decision.cause)
        for values, report in self._mailbox.collect(everything=True):
            seen = read(values, report.limits)
            report.outcome.settle(undone, seen)
            self._chronicle.note(undone, seen, report, "undone by going back")

    def _note(self, decision: policy.Decision, report: Report) -> str:
        if report.outcome.divergence is not None:
            return str(report.outcome.divergence)
        if decision.remedy is not None:
            return f"remedy: {decision.remedy}"
        if decision.action is not Action.HALT or self.config.recovery is None:
            return ""
        if self._recovery is None or not self._recovery.ready:
            return "There is nothing to return to: no snapshot had proved healthy yet."
        return tried(self._policy.rollbacks, policy.remedies(self._given)[: self._policy.remedies])

    def _recover(self, decision: policy.Decision) -> None:
        assert self._recovery is not None  # noqa: S101 - the caller looked
        if decision.action is Action.ROLL_BACK:
            self.reconfigure(self._recovery.roll_back(decision.remedy))
            self._followers.held = 0  # the scheduler went back as well
            self._stepper.replicas.start_anew()
            self._give_up_what_is_under_way(decision)
        elif decision.action in {Action.APPLY, Action.RETRY}:
            self._recovery.applied()
        else:
            self._recovery.bad()
