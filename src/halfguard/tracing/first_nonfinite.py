"""``find_first_nonfinite``: run a step once more, slowly, and name the operation that broke it.

The producer, not the propagators: an operation is named if its inputs were finite and its output was not,
and if that output reached the loss or a gradient. A bad number that nobody used is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.records.culprit import Culprit, Kind
from halfguard.tracing.modules import ModuleStack
from halfguard.tracing.origins import Origin, Origins, checkable, is_finite
from halfguard.tracing.watch import Watch


def find_first_nonfinite(fn: Callable[[], object], model: nn.Module) -> Culprit | None:
    """Run ``fn`` and its backward pass; None if the loss and all gradients are finite.

    ``fn()`` returns the loss, or a mapping with a ``"loss"``; if it runs the backward pass itself it may
    return None. Gradients, buffers and torch's random state are put back afterwards.
    """
    modules = ModuleStack()
    watch = Watch(modules, _step.__code__)
    with _untouched(model), modules.following(model):
        _register(model, watch.origins)
        try:
            with watch:
                loss = _step(fn)
        except Exception:
            # A loop that raises at a bad loss is answered as well; its own mistakes are its own.
            if watch.last is None:
                raise
            return watch.last.culprit
        origin = _origin_of_result(model, loss, watch)
    if origin is None:
        return None
    return replace(origin.culprit, intended=True) if origin.intended else origin.culprit


def _step(fn: Callable[[], object]) -> Tensor | None:
    result = fn()
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if loss is None:
        return None
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"find_first_nonfinite: fn returned {type(loss).__name__}, which is not a loss.",
            cure="Return the loss tensor, a mapping with a 'loss', or None after loss.backward().",
        )
    if loss.requires_grad and is_finite(loss.detach()):
        loss.sum().backward()  # type: ignore[no-untyped-call]
    return loss


def _origin_of_result(model: nn.Module, loss: Tensor | None, watch: Watch) -> Origin | None:
    """The earliest origin of what is bad in the end: the loss, or else a gradient."""
    if loss is not None and not is_finite(loss.detach()):
        return watch.origins.get(loss) or watch.last
    grads = [parameter.grad for parameter in model.parameters()]
    bad = [grad for grad in grads if checkable(grad) and not is_finite(grad)]
    if not bad:
        return None
    found = [origin for grad in bad if (origin := watch.origins.get(grad)) is not None]
    return min(found, key=lambda origin: origin.index, default=watch.last)


def _register(model: nn.Module, origins: Origins) -> None:
    """Parameters and buffers that are bad before the step begins; a mask of -inf is not."""
    residents: list[tuple[Kind, str, Tensor]] = []
    residents += [("parameter", *item) for item in model.named_parameters()]
    residents += [("buffer", *item) for item in model.named_buffers()]
    for kind, name, tensor in residents:
        if checkable(tensor) and not is_finite(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            culprit = Culprit(kind, "", "forward", None, "", 0, "", name=name, dtype=dtype)
            mask = kind == "buffer" and bool((tensor.isfinite() | tensor.isneginf()).all())
            origins.put(tensor, origins.new(culprit, intended=mask))


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put back what a step changes: gradients, buffers, random state."""
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    for parameter, _ in grads:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, saved in buffers:
                buffer.copy_(saved)
