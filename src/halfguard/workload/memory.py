"""The memory of one training step, by part and at its peak, in tensors that are alive.

One idea: memory is storages, and every storage has one purpose at a time. A dispatch mode sees each
storage that an operation makes or reads, a weak reference tells when it goes, and hooks tell what it is for:
the optimizer's for its state, autograd's for gradients and for what the forward pass saves. So the bytes
are exact on any device, also on a CPU, which has no allocator statistics to ask. What a kernel allocates for
itself and gives back before it returns is not seen; on CUDA the allocator's own peak is given beside it.
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
from torch.utils._pytree import tree_leaves

from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.cost import MemoryParts, StepMemory

# In the order of precedence: a weight that is saved for backward is a weight.
Purpose = Literal[
    "weights", "buffers", "gradients", "optimizer", "weight_copies", "activations", "other"
]
Moment = Literal["in_pass", "in_update"]
PRECEDENCE: tuple[Purpose, ...] = get_args(Purpose)


def step_memory(
    step: Callable[[], object], *, model: nn.Module, optimizer: Optimizer, device: torch.device
) -> StepMemory:
    """Run ``step`` once, as it would have run anyway, and tell its memory on ``device``.

    Let one step pass before: an optimizer makes its state in the first.
    """
    with Ledger(model, optimizer, device) as ledger:
        step()
    return ledger.memory()


class _Entry:
    """A living storage: its size, and every purpose that it serves."""

    def __init__(self, reference: weakref.ref[torch.UntypedStorage], size: int) -> None:
        self.reference, self.size = reference, size
        self.serves: Counter[Purpose] = Counter({"other": 1})

    @property
    def purpose(self) -> Purpose:
        return next(purpose for purpose in PRECEDENCE if self.serves[purpose] > 0)


class _Saved:
    """A tensor in autograd's keeping; when autograd lets go of it, so does the ledger."""

    def __init__(self, tensor: Tensor, release: Callable[[Tensor], None]) -> None:
        self.tensor, self.release = tensor, release

    def __del__(self) -> None:
        self.release(self.tensor)


class Ledger(TorchDispatchMode):
    """Keeps the books of one step while it is entered; results are bitwise those without it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.optimizer, self.device = model, optimizer, device
        self._entries: dict[int, _Entry] = {}
        self._now: Counter[Purpose] = Counter()
        self._largest: Counter[Purpose] = Counter()
        self._peaks: dict[Moment, Counter[Purpose]] = {"in_pass": Counter(), "in_update": Counter()}
        self._moment: Moment = "in_pass"
        self._allocated: int | None = None
        self._hooks = ExitStack()

    def __enter__(self) -> Ledger:
        params = list(self.model.parameters())
        self._note(params, "weights")
        self._note(self.model.buffers(), "buffers")
        self._note((p.grad for p in params if p.grad is not None), "gradients")
        self._note_optimizer()
        trained = [p for p in _trained(self.optimizer, params) if p.requires_grad and p.is_leaf]
        handles: list[Any] = [
            p.register_post_accumulate_grad_hook(self._graded)  # type: ignore[no-untyped-call]
            for p in trained
        ]
        handles.append(self.optimizer.register_step_pre_hook(lambda *_: self._enter("in_update")))
        handles.append(self.optimizer.register_step_post_hook(lambda *_: self._updated()))
        for handle in handles:
            self._hooks.callback(handle.remove)
        self._hooks.enter_context(saved_tensors_hooks(self._pack, lambda saved: saved.tensor))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()
        if self.device.type == "cuda":
            self._allocated = torch.cuda.max_memory_allocated(self.device)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Book what the operation reads (the batch comes from outside) and what it makes."""
        given = _tensors((args, kwargs))
        self._note(given, "other")
        result = func(*args, **(kwargs or {}))
        made = _tensors(result)
        self._note(made, "other")
        if func is torch.ops.aten._to_copy.default and self.purpose_of(given[0]) == "weights":
            self._note((copy for copy in made if copy.dtype in HALF_DTYPES), "weight_copies")
        return result

    def purpose_of(self, tensor: Tensor) -> Purpose:
        """What a tensor's memory is kept for."""
        entries = (self._entries.get(storage._cdata) for storage in _storages(tensor))
        found = {entry.purpose for entry in entries if entry is not None}
        return min(found, key=PRECEDENCE.index, default="other")

    def memory(self) -> StepMemory:
        """What was booked so far."""
        return StepMemory(
            largest=MemoryParts.model_validate(self._largest),
            in_pass=MemoryParts.model_validate(self._peaks["in_pass"]),
            in_update=MemoryParts.model_validate(self._peaks["in_update"]),
            allocator_peak=self._allocated,
        )

    def _note(self, tensors: Iterable[Tensor], purpose: Purpose, by: int = 1) -> None:
        for tensor in tensors:
            for storage in _storages(tensor):
                if storage.device == self.device:
                    self._book(storage, purpose, by)

    def _book(self, storage: torch.UntypedStorage, purpose: Purpose, by: int) -> None:
        key, size = storage._cdata, storage.nbytes()
        entry = self._entries.get(key)
        if entry is None:
            if by < 0:
                return
            reference = weakref.ref(storage, lambda _: self._gone(key))
            entry = self._entries[key] = _Entry(reference, 0)
        self._now[entry.purpose] -= entry.size
        # Autograd may keep one storage several times; the other purposes are held or not.
        entry.serves[purpose] = entry.serves[purpose] + by if purpose == "activations" else 1
        entry.size = size
        self._now[entry.purpose] += size
        self._largest |= self._now
        self._note_peak()

    def _note_peak(self) -> None:
        if self._now.total() > self._peaks[self._moment].total():
            self._peaks[self._moment] = self._now.copy()

    def _enter(self, moment: Moment) -> None:
        self._moment = moment
        self._note_peak()

    def _updated(self) -> None:
        self._note_optimizer()
        self._enter("in_pass")

    def _gone(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._now[entry.purpose] -= entry.size

    def _graded(self, param: Tensor) -> None:
        if param.grad is not None:
            self._note([param.grad], "gradients")

    def _note_optimizer(self) -> None:
        self._note(_tensors(list(self.optimizer.state.values())), "optimizer")
        own = set(map(id, self.model.parameters()))
        params = _trained(self.optimizer, ())
        self._note((p for p in params if id(p) not in own), "optimizer")

    def _pack(self, tensor: Tensor) -> _Saved:
        self._note([tensor], "activations")
        return _Saved(tensor.detach(), lambda kept: self._note([kept], "activations", by=-1))


def _trained(optimizer: Optimizer, others: Iterable[Tensor]) -> list[Tensor]:
    """The optimizer's parameters and the others, each once."""
    grouped = (p for group in optimizer.param_groups for p in group["params"])
    return list({id(p): p for p in (*grouped, *others)}.values())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            yield from _storages(getattr(wrapper, name))
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        yield tensor.untyped_storage()
