"""``audit``: run one step, and find numbers that half lost and the step went on without.

Loss and gradients of such a step are finite, so no check of them sees it: ``x / sqrt(mean(x * x))`` with a
square beyond 65504 is x / inf, which is 0. Nothing is learnt from that sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.numerics.tensor_rows import iter_parts, local_tensor, statistics_dtype
from halfguard.records.audit import AuditReport, Use
from halfguard.step.loss import find_loss
from halfguard.step.random_state import preserved_random_state
from halfguard.tracing.operation_places import ModuleStack
from halfguard.tracing.shadow_watch import ShadowWatch


@contextmanager
def restored_gradients(model: nn.Module) -> Iterator[None]:
    """Run the block without gradients, and put them back after it."""
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in grads:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in grads:
            parameter.grad = grad


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore after the block what a step changes: gradients, buffers, random state."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with restored_gradients(model), preserved_random_state():
            yield
    finally:
        with torch.no_grad():
            for buffer, saved in buffers:
                buffer.copy_(saved)


# Relative error of the loss, or of all gradients together, from which a flag is a finding.
LIMIT = 0.02
MAX_BYTES = 2**31  # of shadows


def audit(
    fn: Callable[[], object], model: nn.Module, *, limit: float = LIMIT, max_bytes: int = MAX_BYTES
) -> AuditReport:
    """Run ``fn`` and its backward pass, and report overflows and underflows that changed the step.

    ``fn()`` returns the loss, or a mapping with the key ``"loss"``. If it runs the backward pass itself, it
    may return None. An overflow or underflow is a finding if it changes the loss, or all gradients together,
    by more than ``limit`` (relative error). Gradients, buffers and random state are restored afterwards. The
    FP32 copies for the comparison need at most ``max_bytes``.
    """
    if not 0 < limit < inf or max_bytes < 0:
        raise UsageError(f"audit(limit={limit}, max_bytes={max_bytes}): both must be positive.")
    modules = ModuleStack()
    watch = ShadowWatch(modules, run_step.__code__, max_bytes)
    with restored(model), modules.tracking(model):
        with watch:
            loss = run_step(fn, "audit")
        return judge(watch, model, loss, limit)


def run_step(
    fn: Callable[[], object],
    caller: str,
    *,
    is_worth_a_backward: Callable[[Tensor], bool] = lambda _: True,
) -> Tensor | None:
    """Run ``fn``, and the backward pass of its loss; the user's lines are looked for below this call."""
    result = fn()  # kept until the end: what it holds must not make room for other tensors
    loss = find_loss(result)
    if loss is None:
        return None
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"{caller}: fn returned {type(loss).__name__}, which is not a loss.",
            cure=(
                "Return the loss tensor, a mapping with the key 'loss', or None after "
                "loss.backward()."
            ),
        )
    if loss.requires_grad and is_worth_a_backward(loss.detach()):
        # Parts of the graph may belong to the caller, who still needs them.
        loss.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def judge(watch: ShadowWatch, model: nn.Module, loss: Tensor | None, limit: float) -> AuditReport:
    """Return the report of a watched step: which flags changed the loss or the gradients."""
    shadows = watch.shadows
    loss_value, loss_fp32, loss_error = 0.0, 0.0, 0.0
    used: dict[int, set[str]] = {}
    if loss is not None:
        real, right = loss.detach().sum(), shadows.read(loss.detach()).sum()
        loss_value, loss_fp32 = real.item(), right.item()
        loss_error = _relative(abs(loss_value - loss_fp32), abs(loss_fp32))
        if loss_error > limit:
            for index in shadows.sources(loss.detach()):
                used.setdefault(index, set()).add("loss")
    gradient_error, causes = _gradients(watch, model)
    if gradient_error > limit:
        for index in causes:
            used.setdefault(index, set()).add("gradients")
    reasons = list(watch.not_judged)
    if shadows.is_full:
        reasons.append(
            f"the FP32 copies for the comparison would need more than {shadows.max_bytes} bytes"
        )
    rows = [
        flag.first.model_copy(
            update={
                "elements": flag.elements,
                "numel": flag.numel,
                "calls": flag.calls,
                "use": _use(used.get(index, set()), unknown=shadows.is_full),
            }
        )
        for index, flag in enumerate(watch.flags)
    ]
    findings = [row for index, row in enumerate(rows) if index in used]
    # Small numbers that vanished beside a real overflow are rarely the cause.
    findings.sort(key=lambda row: row.fault == "underflow")
    return AuditReport(
        findings=tuple(findings),
        harmless=tuple(row for index, row in enumerate(rows) if index not in used),
        loss=loss_value,
        loss_fp32=loss_fp32,
        loss_error=loss_error,
        gradient_error=gradient_error,
        not_judged=tuple(reasons),
    )


def _use(parts: set[str], *, unknown: bool) -> Use:
    if not parts:
        return "not judged" if unknown else "none"
    if len(parts) == 2:
        return "loss and gradients"
    return "loss" if "loss" in parts else "gradients"


def _finite_squares(part: Tensor) -> Tensor:
    wide = part.to(statistics_dtype(part.device))
    return wide.nan_to_num(0.0, 0.0, 0.0).square_().sum()


def _squares(grad: Tensor, right: Tensor, *, only_finite: bool) -> tuple[float, float]:
    """Return the sums of squares of a gradient in FP32, and of its error in half.

    Where FP32 fails as well, half is not to blame; with ``only_finite``, nor is it for an infinite gradient,
    which is a matter of the loss scale.
    """
    size = error = 0.0
    for part, right_part in iter_parts(grad, right):
        wide = right_part.to(statistics_dtype(part.device))
        counted = wide.isfinite() & part.isfinite() if only_finite else wide.isfinite()
        wrong = torch.where(counted, part - wide, 0.0).square_().sum()
        sums = torch.stack([_finite_squares(wide), wrong]).tolist()  # one read
        size, error = size + sums[0], error + sums[1]
    return size, error


def _gradients(watch: ShadowWatch, model: nn.Module) -> tuple[float, frozenset[int]]:
    """Return the relative error of all gradients together, and the flags behind most of it."""
    total, errors = 0.0, list[tuple[float, frozenset[int]]]()
    for parameter in model.parameters():
        grad = parameter.grad
        if grad is None or grad.is_sparse:
            continue
        local = local_tensor(grad)
        if not watch.shadows.has(local):
            total += sum(float(_finite_squares(part)) for (part,) in iter_parts(local))
            continue
        sources = watch.shadows.sources(local)
        only_backward = all(watch.flags[index].first.phase == "backward" for index in sources)
        size, error = _squares(local, watch.shadows.read(local), only_finite=only_backward)
        total += size
        errors.append((error if isfinite(error) else inf, sources))
    wrong = sum(error for error, _ in errors)
    most = [sources for error, sources in errors if error >= 0.01 * wrong or error == inf]
    return _relative(wrong**0.5, total**0.5), frozenset[int]().union(*most)


def _relative(error: float, size: float) -> float:
    if not isfinite(error):
        return inf if isfinite(size) else 0.0  # where FP32 fails as well, half is not to blame
    return error / size if size else (inf if error else 0.0)
