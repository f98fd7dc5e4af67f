"""Audit planted and healthy steps, and say what is wrong with the answer: for the tests and the soak."""

from __future__ import annotations

import torch

from benchmarks.models.swallowed import HEALTHY, Planted, Step, line_of
from halfguard.precision_names import Precision
from halfguard.tracing.audit import audit

STEPS = 60


def missed(planted: Planted, seed: int = 0) -> str:
    """Return what is wrong with the audit of a planted fault; empty if it was named first."""
    step = planted.make(seed)
    report = audit(lambda: step.loss(scale=planted.scale), step.model)
    expected = (*line_of(planted), planted.module, planted.phase)
    found = [(one.file, one.line, one.module, one.phase) for one in report.findings]
    return "" if found[:1] == [expected] else f"{planted}: expected {expected}, found {found}"


def alarms(name: str, precision: Precision, *, trained: bool, seed: int = 0) -> tuple[str, float]:
    """Return the findings in a healthy model, and its largest error."""
    scale = 1024.0 if precision is Precision.FP16_MIXED else 1.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        step = HEALTHY[name](seed)
        if trained:
            scale = _train(step, precision, scale)
        report = audit(lambda: step.loss(precision, scale), step.model)
    text = "; ".join(map(str, report.findings)) or "; ".join(report.not_judged)
    return text, max(report.loss_error, report.gradient_error)


def _train(step: Step, precision: Precision, scale: float) -> float:
    """Train a model for some steps with a loss scale that falls if it must; return the scale."""
    optimizer = torch.optim.AdamW(step.model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        step.loss(precision, scale).backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in step.model.parameters() if p.grad is not None]
        if not all(bool(grad.isfinite().all()) for grad in grads):
            scale /= 2
            continue
        for grad in grads:
            grad.div_(scale)
        optimizer.step()
    return scale
