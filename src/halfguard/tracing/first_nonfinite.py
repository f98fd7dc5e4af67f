"""``find_first_nonfinite``: run a step again and find the operation that returned the first NaN or Inf.

It reports the producer, not the operations that pass the number on: the inputs were finite, the output was
not, and the output reached the loss or a gradient. A bad number that is never used is not reported.

If loss and gradients are finite, the step is also judged by the rules of ``audit``: an overflow that a later
operation turned into a finite, wrong number is reported as ``swallowed``. Both share one run of the step.

A dispatch mode runs below autograd, so it sees the operations of the forward pass, of the backward pass and
of recomputed blocks. Each output is checked. A non-finite output inherits the origin of a bad input;
without a bad input, this operation is the origin.

An infinity that was written on purpose (a mask) counts as good while it stays an infinity: a softmax turns it
into 0. An operation that turns it into NaN, or adds an infinity of its own, is an origin.

A bad number may leave a tensor (``rate.item()``) and enter an operation as a plain number, such as the
learning rate of an optimizer: the origin of the tensor is then that of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.formats import dtype_name
from halfguard.records.autopsy import Culprit, CulpritKind, TensorRange
from halfguard.tracing import origins as known
from halfguard.tracing.audit import LIMIT, MAX_BYTES, judge, restored, run_step
from halfguard.tracing.call_arguments import (
    OperationMode,
    TensorArgument,
    bind_arguments,
    tensor_arguments,
    tensors_in,
)
from halfguard.tracing.operation_places import ModuleStack, OperationPlace, OperationPlaces
from halfguard.tracing.origins import Origin, Origins, can_check, has_nan, is_finite, measure_range
from halfguard.tracing.shadow_watch import ShadowWatch
from halfguard.tracing.source import find_user_name, user_frame


@dataclass(frozen=True, slots=True)
class CallInputs:
    """The arguments of one call, before it ran."""

    read: list[tuple[str, Tensor]]
    bad: list[tuple[str, Tensor]]
    ranges: tuple[TensorRange, ...] | None  # None if the tensors are unchanged


class OperationWatch(OperationMode):  # type: ignore[no-untyped-call]
    """Finds the origin of every bad number; ``origins`` returns it for a tensor."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        super().__init__()
        self.origins = Origins()
        self.last: Origin | None = None
        # The origin of the last bad number that the script took out of a tensor, as by ``.item()``.
        self._number: Origin | None = None
        self._places = OperationPlaces(modules, outermost)
        self._outermost = outermost

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = tensor_arguments(bind_arguments(func, args, kwargs))
        arguments = [one for one in bound if can_check(one.tensor)]
        packet = func.overloadpacket.__name__
        written = [tensor for _, tensor, is_written in arguments if is_written]
        # Tensors that an in-place operation overwrites must be checked before.
        before = self._inputs(packet, arguments, overwritten=True) if written else None
        out = func(*args, **kwargs)
        frame = user_frame(self._outermost)
        where = self._places.of(packet, frame)
        if packet in known.UNWRITTEN:
            self.origins.mark_unwritten(out)
            return out
        if packet == "_local_scalar_dense" and _is_bad_number(out):
            self._number = self.origins.get(args[0])
        shared = {tensor.untyped_storage()._cdata for _, tensor, _ in arguments}
        results = filter(can_check, tensors_in(out))
        fresh = [t for t in results if t.untyped_storage()._cdata not in shared]
        bad = [tensor for tensor in (*fresh, *written) if not self._found_finite(tensor)]
        if bad:
            inputs = before or self._inputs(packet, arguments, overwritten=False)
            given = any(map(_is_bad_number, (*args, *kwargs.values())))
            if self._number is not None and given and not inputs.bad and packet not in known.FILLS:
                for tensor in bad:  # they come from a number, such as a learning rate
                    self.origins.put(tensor, self._number)
            else:
                self._assign_origin(func, inputs, bad, where, frame)
        return out

    def _found_finite(self, tensor: Tensor) -> bool:
        finite = is_finite(tensor)
        if finite:
            self.origins.clear(tensor)
        return finite

    def _inputs(
        self, packet: str, arguments: list[TensorArgument], *, overwritten: bool
    ) -> CallInputs:
        read = [
            (name, tensor)
            for name, tensor, is_written in arguments
            if not (
                is_written and (packet in known.OVERWRITES or self.origins.is_unwritten(tensor))
            )
        ]
        bad = [(name, tensor) for name, tensor in read if not is_finite(tensor)]
        return CallInputs(read, bad, _ranges(read) if overwritten else None)

    def _assign_origin(
        self,
        func: Any,
        inputs: CallInputs,
        bad: list[Tensor],
        where: OperationPlace,
        frame: FrameType | None,
    ) -> None:
        found = [self._origin_of(name, tensor, where, frame) for name, tensor in inputs.bad]
        origin = min((o for o in found if not o.intended), key=_index, default=None)
        if origin is None:
            origin = self._intended_origin(func, found, inputs, bad)
        if origin is None:
            packet = func.overloadpacket.__name__
            intended = packet in known.FILLS and not any(map(has_nan, bad))
            outputs = _ranges([("output", tensor) for tensor in bad])
            culprit = where.culprit(
                kind="op",
                kernel=str(func),
                dtype=outputs[0].dtype,
                inputs=_ranges(inputs.read) if inputs.ranges is None else inputs.ranges,
                outputs=outputs,
            )
            origin = self.origins.new(culprit, intended=intended)
        if not origin.culprit.op:  # a parameter or a buffer, used for the first time
            facts = {"kind": origin.culprit.kind, "name": origin.culprit.name}
            origin.culprit = where.culprit(**facts, dtype=origin.culprit.dtype)
        if not origin.intended:
            self.last = origin
        for tensor in bad:
            self.origins.put(tensor, origin)

    def _intended_origin(
        self, func: Any, found: list[Origin], inputs: CallInputs, bad: list[Tensor]
    ) -> Origin | None:
        """Return the origin of intended infinities, if the outputs hold no other bad numbers."""
        if not found or any(map(has_nan, bad)):
            return None
        if torch.Tag.pointwise in func.tags and not func._schema.is_mutable:
            for tensor in bad:
                explained = torch.zeros_like(tensor, dtype=torch.bool)
                for _, source in inputs.bad:
                    explained |= source.isinf()
                if bool((tensor.isinf() & ~explained).any()):
                    return None
        return min(found, key=_index)

    def _origin_of(
        self, name: str, tensor: Tensor, where: OperationPlace, frame: FrameType | None
    ) -> Origin:
        origin = self.origins.get(tensor)
        if origin is not None:
            return origin
        # No operation made it: it came with the batch, or existed before.
        storage = tensor.untyped_storage()._cdata
        user_name = find_user_name(
            frame, lambda v: can_check(v) and v.untyped_storage()._cdata == storage
        )
        facts = _ranges([(name, tensor)])
        culprit = where.culprit(
            kind="input", name=user_name or name, dtype=facts[0].dtype, inputs=facts
        )
        only_masks = not has_nan(tensor) and not facts[0].posinf
        origin = self.origins.new(culprit, intended=only_masks)
        self.origins.put(tensor, origin)
        return origin


def _is_bad_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _index(origin: Origin) -> int:
    return origin.index


def _ranges(tensors: list[tuple[str, Tensor]]) -> tuple[TensorRange, ...]:
    return tuple(measure_range(name, tensor) for name, tensor in tensors)


def find_first_nonfinite(fn: Callable[[], object], model: nn.Module) -> Culprit | None:
    """Run ``fn`` and its backward pass, and return the operation that failed first.

    The operation returned the first NaN or Inf, or its overflow was swallowed. The result is None if the
    loss and all gradients are finite and no overflow was swallowed.

    ``fn()`` returns the loss, or a mapping with the key ``"loss"``. If it runs the backward pass itself, it
    may return None. Gradients, buffers and random state are restored afterwards.
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
            dtype = dtype_name(tensor.dtype)
            culprit = Culprit(kind, "", "forward", None, "", 0, "", name=name, dtype=dtype)
            mask = kind == "buffer" and bool((tensor.isfinite() | tensor.isneginf()).all())
            origins.put(tensor, origins.new(culprit, intended=mask))
