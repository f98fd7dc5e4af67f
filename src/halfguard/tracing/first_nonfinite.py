"""``find_first_nonfinite``: run a step again, slowly, and find the operation that made the first bad number.

It reports the producer, not the operations that pass the number on: the inputs were finite, the output was
not, and the output reached the loss or a gradient. A bad number that is never used is not reported.

If loss and gradients are finite, the step is also judged by the rules of ``audit``: an overflow that a later
operation turned into a finite, wrong number is reported as ``swallowed``. Both share one run of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from halfguard.records.culprit import Culprit, CulpritKind
from halfguard.tracing.audit import LIMIT, MAX_BYTES, judge, restored, run_step
from halfguard.tracing.operation_places import ModuleStack
from halfguard.tracing.operation_watch import OperationWatch
from halfguard.tracing.origins import Origin, Origins, can_check, is_finite
from halfguard.tracing.shadow_watch import ShadowWatch


def find_first_nonfinite(fn: Callable[[], object], model: nn.Module) -> Culprit | None:
    """Run ``fn`` and its backward pass; return None if the loss and all gradients are finite and right.

    ``fn()`` returns the loss, or a mapping with a ``"loss"``; if it runs the backward pass itself it may
    return None. Gradients, buffers and random state are restored afterwards.
    """
    modules = ModuleStack()
    watch = OperationWatch(modules, run_step.__code__)
    shadows = ShadowWatch(modules, run_step.__code__, MAX_BYTES)
    with restored(model), modules.tracking(model):
        _register(model, watch.origins)
        try:
            with watch, shadows:
                loss = run_step(fn, "find_first_nonfinite", is_worth_a_backward=is_finite)
        except Exception:
            # A loop may raise because the loss is bad; other exceptions are raised again.
            if watch.last is None:
                raise
            return watch.last.culprit
        origin = _origin_of_result(model, loss, watch)
        if origin is None:
            findings = judge(shadows, model, loss, LIMIT).findings
            return findings[0].culprit if findings else None
    return replace(origin.culprit, intended=True) if origin.intended else origin.culprit


def _origin_of_result(
    model: nn.Module, loss: Tensor | None, watch: OperationWatch
) -> Origin | None:
    """Return the earliest origin of a bad loss or, if the loss is finite, of bad gradients."""
    if loss is not None and not is_finite(loss.detach()):
        return watch.origins.get(loss) or watch.last
    grads = [parameter.grad for parameter in model.parameters()]
    bad = [grad for grad in grads if can_check(grad) and not is_finite(grad)]
    if not bad:
        return None
    found = [origin for grad in bad if (origin := watch.origins.get(grad)) is not None]
    return min(found, key=lambda origin: origin.index, default=watch.last)


def _register(model: nn.Module, origins: Origins) -> None:
    """Set the origin of parameters and buffers that are bad before the step; a mask of -inf is intended."""
    residents: list[tuple[CulpritKind, str, Tensor]] = []
    residents += [("parameter", *item) for item in model.named_parameters()]
    residents += [("buffer", *item) for item in model.named_buffers()]
    for kind, name, tensor in residents:
        if can_check(tensor) and not is_finite(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            culprit = Culprit(kind, "", "forward", None, "", 0, "", name=name, dtype=dtype)
            mask = kind == "buffer" and bool((tensor.isfinite() | tensor.isneginf()).all())
            origins.put(tensor, origins.new(culprit, intended=mask))
