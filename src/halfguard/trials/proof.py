"""Prove an island on the step that failed: with it the step is finite, and its gradients are those of FP32.

Three questions, each answered over all ranks together:

1. Is the step finite, at its loss scale or at a lower one? Too large a scale is not the island's business.
2. Are all gradients together within ``TOLERANCE`` of those of FP32? A step may itself be so sensitive that
   FP32 with weights rounded to half is as far away. Then twice that distance is allowed, since no island
   changes it.
3. Does the audit of the step still find the operation, or another one that it did not find before? A fault
   that only moves one line further on may be small at this step, and large at the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from halfguard.dist.collectives import all_agree, all_gather_numbers, broadcast_object, run_on_all
from halfguard.numerics.tensor_rows import iter_parts, statistics_dtype
from halfguard.records.audit import AuditReport
from halfguard.tracing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.trials.cost import StepCosts, counted_costs
from halfguard.trials.producer import Producer
from halfguard.trials.runner import Runner, TrialGradients

TOLERANCE = 0.1  # relative; half alone gives a few percent where gradients are tiny
MARGIN = 2.0  # half rounds inputs and results as well, not only weights
_FACTOR = 16.0  # by which the loss scale falls if gradients overflow

T = TypeVar("T")


@dataclass(frozen=True)
class Proof:
    """The result of one trial; equal on every rank."""

    holds: bool
    error: float = math.inf  # of all gradients together, relative to FP32
    sensitivity: float = 0.0  # the same in FP32 with weights rounded to half; 0 if not needed


class BadStep:
    """One step that failed in half, with what FP32 makes of it."""

    def __init__(self, runner: Runner, scale: float, device: torch.device) -> None:
        self._runner, self._device = runner, device
        self._scale = scale
        self.costs = StepCosts()  # of the first rank
        self._reference: TrialGradients | None = None
        self.error = ""  # that FP32 raised
        self._sensitivity: float | None = None  # of gradients to weights rounded to half
        self._known: frozenset[str] = frozenset()  # places that the audit finds without an island

    def find_producer(self) -> Producer | None:
        """Return the operation to blame on this rank; None if there is none."""
        run = self._runner.in_half(self._scale)
        with self._runner.unchanged():
            return Producer.of(find_first_nonfinite(run, self._runner.model))

    def is_finite_in_fp32(self) -> bool:
        """Return whether FP32 is finite on all ranks, and keep its gradients. Every rank must call this."""
        run = self._runner.in_fp32()
        with counted_costs(self._runner.model) as costs:
            self._reference, errors = self._run_on_all(
                lambda: self._runner.gradients(run).on_host()
            )
        self.costs = StepCosts(broadcast_object(0, costs.places, self._device))
        self.error = errors[0] if errors else ""
        found = self._reference is not None and self._reference.finite
        if not all_agree(found, self._device):
            return False
        self._known = frozenset(self._on_all(self._findings) or ())
        return True

    def is_finite_at(self, scale: float) -> bool:
        """Return whether the step in half is finite at this loss scale. Every rank must call this."""
        return self._gradients_at(scale)[1]

    def _gradients_at(self, scale: float) -> tuple[TrialGradients | None, bool]:
        """Return the gradients in half, and whether those of all ranks are finite."""
        run = self._runner.in_half(scale)
        tried = self._on_all(lambda: self._runner.gradients(run, scale))
        return tried, all_agree(tried is not None and tried.finite, self._device)

    def prove(self, producer: Producer) -> Proof:
        """Try the step as the model is at present. Every rank must call this."""
        scale = self._scale
        while True:
            tried, finite = self._gradients_at(scale)
            if finite:
                break
            if scale <= 1.0 or not all_agree(tried is not None, self._device):
                return Proof(holds=False)
            scale = max(scale / _FACTOR, 1.0)
        assert tried is not None  # noqa: S101 - agreed above
        assert self._reference is not None  # noqa: S101 - is_finite_in_fp32 was called
        self._scale = scale
        error = self._error(tried, self._reference)
        del tried  # the audit needs room
        if not error <= TOLERANCE and not error <= MARGIN * self._own_sensitivity(self._reference):
            return Proof(False, error)
        found = self._on_all(self._findings)
        clean = found is not None and producer.place not in found and found <= self._known
        sensitivity = 0.0 if error <= TOLERANCE else self._sensitivity or 0.0
        return Proof(all_agree(clean, self._device), error, sensitivity)

    def _own_sensitivity(self, reference: TrialGradients) -> float:
        """Return how far the gradients move in FP32 if the weights are rounded to half."""
        if self._sensitivity is None:
            run = self._runner.in_fp32()

            def rounded() -> TrialGradients:
                with self._runner.rounded_weights():
                    return self._runner.gradients(run)

            tried = self._on_all(rounded)
            finite = all_agree(tried is not None and tried.finite, self._device)
            moved = self._error(tried, reference) if finite and tried is not None else 0.0
            self._sensitivity = moved
        return self._sensitivity

    def audit(self) -> AuditReport:
        """Audit the step on this rank, as the model is at present."""
        run = self._runner.in_half(self._scale)
        with self._runner.unchanged():
            return audit(run, self._runner.model)

    def _findings(self) -> frozenset[str]:
        return frozenset(finding.place for finding in self.audit().findings)

    def _error(self, tried: TrialGradients, reference: TrialGradients) -> float:
        sums = squared_difference(tried.values, reference.values)
        return relative(*map(sum, zip(*all_gather_numbers(sums, self._device), strict=True)))

    def _on_all(self, work: Callable[[], T]) -> T | None:
        """Return the result of ``work``; None if it raised on any rank."""
        return self._run_on_all(work)[0]

    def _run_on_all(self, work: Callable[[], T]) -> tuple[T | None, list[str]]:
        result, errors = run_on_all(work, self._device)
        return (None if errors else result), errors


def squared_difference(
    values: Sequence[Tensor | None], reference: Sequence[Tensor | None]
) -> list[float]:
    """Return the sums of squares of the difference, and of the reference; a missing gradient is 0."""
    apart = size = 0.0
    for value, right in zip(values, reference, strict=True):
        if right is None:
            continue
        device = right.device if value is None else value.device
        for part, *other in iter_parts(right, *(() if value is None else (value,))):
            wide = part.to(device, statistics_dtype(device), copy=True)
            size += float(wide.square().sum())
            if other:
                wide.sub_(other[0])
            apart += float(wide.square_().sum())
    return [apart, size]


def relative(apart: float, size: float) -> float:
    """Return the relative error of two sums of squares."""
    return math.sqrt(apart / size) if size else (0.0 if not apart else math.inf)
