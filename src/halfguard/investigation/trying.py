"""Run the bad step once more under one change, and tell whether it is good."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halfguard.investigation.approach import Approach
from halfguard.investigation.called_modules import CalledModules
from halfguard.investigation.finite import bad_tensors, first_number, storages
from halfguard.investigation.full_precision import force_bf16, force_fp32
from halfguard.investigation.line_changes import line_change
from halfguard.investigation.passes import (
    Ended,
    Event,
    PassPlan,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.training_loop import BackwardCall, Look, TrainingLoop
from halfguard.precision.islands import fp32_island
from halfguard.records.autopsy import ReplayTrial

_KEPT_ELEMENTS = 50_000_000  # of gradients that are compared with those of FP32
Send = Callable[[TrialResult], NoReturn]


class Trying(Approach):
    """Applies a change at the beginning of the bad step, and answers after its backward pass or its step."""

    def __init__(
        self, plan: PassPlan, loop: TrainingLoop, event: Event, trial: TrialPlan, send: Send
    ) -> None:
        super().__init__(plan, loop, event)
        self._trial, self._send = trial, send
        self._loss = self._norm = math.nan
        self._gradients = ""
        self._change = line_change(trial)
        self._scaled = False
        self._judged = False  # the backward pass of the step was good
        self._bad_before: set[int] = set()  # storages of parameters

    def begin(self, first: nn.Module | None, args: Any) -> None:  # noqa: ARG002
        self.has_begun = True
        trial = self._trial
        if trial.kind == "fp32":
            # Not unobserved: leaving that would restore the autocast that this switches off.
            with torch.no_grad():
                force_fp32(self.loop.parameters, self.loop.optimizers)
        elif trial.kind == "bf16":
            force_bf16()
        elif trial.kind == "island":
            self._make_island(first)
        elif self._change is not None:
            self._change.begin()
        with self.loop.unobserved():
            self._bad_before = storages(bad_tensors(self.loop.parameters))

    def before_scaling(self, scaler: Any) -> None:
        """Set the scale of the trial; not before: the last step's gradients have the old one."""
        self._scaled |= self.has_begun
        if not self.has_begun or self._trial.scale is None:
            return
        if scaler._scale is None:
            scaler._init_scale = self._trial.scale
        else:
            with self.loop.unobserved():
                scaler._scale.fill_(self._trial.scale)

    def _make_island(self, first: nn.Module | None) -> None:
        """Put the module in FP32, as soon as its root is known."""
        modules = CalledModules()

        def enter(module: nn.Module, _args: Any) -> None:
            if not modules.has_root(module):
                modules.name_root(module)
                found = modules.module_at(self._trial.module)
                if found is not None:
                    fp32_island(found)
                    handle.remove()

        handle = register_module_forward_pre_hook(enter)
        if first is not None:
            enter(first, ())

    # -- what the loop does

    def before_backward(self, call: BackwardCall) -> None:
        super().before_backward(call)
        if self.has_begun and call.accumulates:
            with self.loop.unobserved():
                self._loss = first_number(call.losses)
                bad = bad_tensors(call.losses)
            if bad:
                self._end(good=False)

    def after_backward(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        if not self.has_begun:
            return
        with self.loop.unobserved():
            bad = bad_tensors(gradients)
            scale = self.loop.scale if call.scaled else 1.0
            norms = [g.detach().float().norm() for g in gradients if not g.is_sparse]
            self._norm = float(torch.stack(norms).norm()) / scale if norms else 0.0
        if bad:
            note = f"the gradients overflow at loss scale {scale:g}" if call.scaled else ""
            self._end(good=False, note=note)
        if call.accumulates:
            self._judged = True
            self._keep(gradients, scale)
            if self.event.kind != "parameters":
                self._end(good=True)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.has_begun or not self._judged:
            return
        with self.loop.unobserved():
            bad = bad_tensors(p for group in optimizer.param_groups for p in group["params"])
        self._end(good=storages(bad) <= self._bad_before)

    def backward_failed(self, error: RuntimeError) -> None:
        if self.has_begun:
            self._end(good=False, note=f"{type(error).__name__}: {error}")

    def looked(self, look: Look) -> None:
        if self.has_begun and (look.tensor.requires_grad or self.event.kind == "looked"):
            self._end(good=False)

    def finish(self, error: str, ended: Ended) -> NoReturn:
        note = error or f"the script ended ({ended}) before the step"
        self._end(good=self._judged and not error, note=note)

    # -- the answer

    def _keep(self, gradients: list[Tensor], scale: float) -> None:
        """Keep the gradients in a file, to compare them with those of other trials."""
        if sum(g.numel() for g in gradients) > _KEPT_ELEMENTS:
            return
        with self.loop.unobserved():
            wide = [g.detach().double().cpu() / scale for g in gradients if not g.is_sparse]
        self._gradients = f"{self.plan.answer}.{self._trial.kind}.gradients"
        with open(self._gradients, "wb") as file:  # noqa: PTH123
            file.writelines(g.numpy().tobytes() for g in wide)

    def _end(self, *, good: bool, note: str = "") -> NoReturn:
        if good and self._norm == 0:
            note = "all gradients are 0: finite, but nothing is learnt"
        trial = ReplayTrial(
            name=self._trial.name,
            good=good,
            loss=self._loss,
            grad_norm=self._norm,
            note=" ".join(note.split())[:200],
        )
        os.chdir(self.plan.base)  # paths of a patch begin there, wherever the script has gone
        facts = {} if self._change is None else self._change.facts()
        facts |= {"gradients": self._gradients, "scaled": self._scaled}
        self._send(TrialResult(plan=self._trial, trial=trial, **facts))
