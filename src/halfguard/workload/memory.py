"""The memory of one training step, by purpose and at its peak, counted in live tensor storages.

Memory is a set of storages, and every storage has one purpose at a time. A dispatch mode sees each storage
that an operation creates or reads, a weak reference reports when it is freed, and hooks find its purpose: the
optimizer's hooks for its state, autograd's for gradients and saved activations. So the bytes are exact on any
device, also on a CPU, which has no allocator statistics. Memory that a kernel allocates and frees inside one
call is not seen; on CUDA the allocator's own peak is reported as well.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.cost import MemoryParts, StepMemory
from halfguard.step.nested import tensors_in
from halfguard.step.parameters import parameters_of

# In order of precedence: a weight that is saved for the backward pass counts as a weight.
Purpose = Literal[
    "weights", "buffers", "gradients", "optimizer", "weight_copies", "activations", "other"
]
StepPhase = Literal["in_pass", "in_update"]
PRECEDENCE: tuple[Purpose, ...] = get_args(Purpose)


def measure_step_memory(
    step: Callable[[], object], *, model: nn.Module, optimizer: Optimizer, device: torch.device
) -> StepMemory:
    """Run ``step`` once, without changing its results, and return its memory on ``device``.

    Run one step before: an optimizer creates its state in the first.
    """
    with MemoryTracker(model, optimizer, device) as tracker:
        step()
    return tracker.memory()


class _TrackedStorage:
    """A live storage with its size, and the number of uses for each purpose."""

    def __init__(self, reference: weakref.ref[torch.UntypedStorage], size: int) -> None:
        self.reference, self.size = reference, size
        self.uses: Counter[Purpose] = Counter({"other": 1})

    @property
    def purpose(self) -> Purpose:
        return next(purpose for purpose in PRECEDENCE if self.uses[purpose] > 0)


class _SavedTensor:
    """A tensor saved by autograd; ``release`` is called when autograd frees it."""

    def __init__(self, tensor: Tensor, release: Callable[[Tensor], None]) -> None:
        self.tensor, self.release = tensor, release

    def __del__(self) -> None:
        self.release(self.tensor)


class MemoryTracker(TorchDispatchMode):
    """Counts the storages of one step inside a ``with`` block; the step's results do not change by a bit."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.optimizer, self.device = model, optimizer, device
        self._storages: dict[int, _TrackedStorage] = {}
        self._current: Counter[Purpose] = Counter()
        self._largest: Counter[Purpose] = Counter()
        self._peaks: dict[StepPhase, Counter[Purpose]] = {p: Counter() for p in get_args(StepPhase)}
        self._phase: StepPhase = "in_pass"
        self._allocated: int | None = None
        # torch.cuda and its kind; some, such as torch.cpu and torch.mps, keep no peak.
        self._allocator: Any = torch.get_device_module(device)
        self._hooks = ExitStack()

    def __enter__(self) -> MemoryTracker:
        params = list(self.model.parameters())
        self._count(params, "weights")
        self._count(self.model.buffers(), "buffers")
        self._count((p.grad for p in params if p.grad is not None), "gradients")
        self._count_optimizer()
        unique = {id(p): p for p in (*parameters_of(self.optimizer), *params)}
        handles: list[Any] = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in unique.values()
            if p.requires_grad and p.is_leaf
        ]
        handles.append(
            self.optimizer.register_step_pre_hook(lambda *_: self._start_phase("in_update"))
        )
        handles.append(self.optimizer.register_step_post_hook(lambda *_: self._on_updated()))
        for handle in handles:
            self._hooks.callback(handle.remove)
        self._hooks.enter_context(saved_tensors_hooks(self._pack, lambda saved: saved.tensor))
        if hasattr(self._allocator, "reset_peak_memory_stats"):
            self._allocator.reset_peak_memory_stats(self.device)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()
        if hasattr(self._allocator, "max_memory_allocated"):
            self._allocated = self._allocator.max_memory_allocated(self.device)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count what the operation reads (the batch is created outside) and what it creates."""
        inputs = _tensors((args, kwargs))
        self._count(inputs, "other")
        result = func(*args, **(kwargs or {}))
        outputs = _tensors(result)
        self._count(outputs, "other")
        if func is torch.ops.aten._to_copy.default and self.purpose_of(inputs[0]) == "weights":
            self._count((copy for copy in outputs if copy.dtype in HALF_DTYPES), "weight_copies")
        return result

    def purpose_of(self, tensor: Tensor) -> Purpose:
        """Return the purpose of a tensor's storage."""
        tracked = (self._storages.get(storage._cdata) for storage in _storages(tensor))
        found = {one.purpose for one in tracked if one is not None}
        return min(found, key=PRECEDENCE.index, default="other")

    def memory(self) -> StepMemory:
        """Return what was counted so far."""
        return StepMemory(
            largest=MemoryParts.model_validate(self._largest),
            in_pass=MemoryParts.model_validate(self._peaks["in_pass"]),
            in_update=MemoryParts.model_validate(self._peaks["in_update"]),
            allocator_peak=self._allocated,
        )

    def _count(self, tensors: Iterable[Tensor], purpose: Purpose, by: int = 1) -> None:
        for tensor in tensors:
            for storage in _storages(tensor):
                if storage.device == self.device:
                    self._count_storage(storage, purpose, by)

    def _count_storage(self, storage: torch.UntypedStorage, purpose: Purpose, by: int) -> None:
        key = storage._cdata
        tracked = self._storages.get(key)
        if tracked is None:
            if by < 0:
                return
            reference = weakref.ref(storage, lambda _: self._on_freed(key))
            tracked = self._storages[key] = _TrackedStorage(reference, 0)
        self._current[tracked.purpose] -= tracked.size
        # Autograd may save one storage several times; the other purposes apply or do not.
        tracked.uses[purpose] = tracked.uses[purpose] + by if purpose == "activations" else 1
        tracked.size = storage.nbytes()
        self._current[tracked.purpose] += tracked.size
        self._largest |= self._current
        self._update_peak()

    def _update_peak(self) -> None:
        if self._current.total() > self._peaks[self._phase].total():
            self._peaks[self._phase] = self._current.copy()

    def _start_phase(self, phase: StepPhase) -> None:
        self._phase = phase
        self._update_peak()

    def _on_updated(self) -> None:
        self._count_optimizer()
        self._start_phase("in_pass")

    def _on_freed(self, key: int) -> None:
        tracked = self._storages.pop(key)
        self._current[tracked.purpose] -= tracked.size

    def _on_gradient(self, param: Tensor) -> None:
        if param.grad is not None:
            self._count([param.grad], "gradients")

    def _count_optimizer(self) -> None:
        self._count(_tensors(list(self.optimizer.state.values())), "optimizer")
        own = set(map(id, self.model.parameters()))
        self._count((p for p in parameters_of(self.optimizer) if id(p) not in own), "optimizer")

    def _pack(self, tensor: Tensor) -> _SavedTensor:
        self._count([tensor], "activations")
        return _SavedTensor(tensor.detach(), lambda kept: self._count([kept], "activations", by=-1))


def _tensors(tree: Any) -> list[Tensor]:
    return list(tensors_in(tree))


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            yield from _storages(getattr(wrapper, name))
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        yield tensor.untyped_storage()
