"""What a pass reads from outside: values that none of its own operations has computed.

Two passes that begin with the same state read the same values: tensors, and numbers among the arguments. The
first one that differs shows that something was not put back, whatever holds it: an iterator, a cache, a
generator of random numbers. Results are not compared, since kernels of a GPU may add in another order each
time. Where a result decides what the program does next (a number read on the host, the size of a selection)
and differs, the comparison ends. What DDP and FSDP2 do in a forward pass is left out: they gather weights
that an earlier pass may have released.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from halfguard.numerics.checksum import checksums
from halfguard.numerics.tensor_rows import is_plain, local_tensor
from halfguard.tracing.call_arguments import OperationMode
from halfguard.tracing.source import SourceLine, locate_frame, user_frame

_TORCH = str(Path(torch.__file__).parent)
_WRAPPERS = (str(Path(_TORCH, "distributed")), str(Path(_TORCH, "nn", "parallel")))
_LAYERS = (str(Path(_TORCH, "nn")),)
_COMPARED = (bool, int, float, complex, str, torch.dtype, type(None))
_KINDS = (Tensor, nn.Parameter, nn.Buffer)
_LARGEST = 2**24  # elements of a tensor that are compared


class _Operation(NamedTuple):
    name: str
    numbers: str
    first_read: int  # of the values that it reads from outside, in the list of all
    result: str  # what the program may decide by
    source: SourceLine


class ValuesRead(OperationMode):  # type: ignore[no-untyped-call]
    """Record the values that the operations inside the block read from outside."""

    supports_higher_order_operators = True  # such as torch.cond: each is one operation

    def __init__(self, *, weights: bool = True) -> None:
        """Prepare; ``weights`` tells whether parameters count: those of FSDP2 are gathered anew."""
        super().__init__()
        self._weights = weights
        self._operations: list[_Operation] = []
        # Storages that were read before or computed here, by address. torch's own weak references would
        # keep the objects of freed storages until the end.
        self._known = WeakValueDictionary[int, torch.UntypedStorage]()
        self._sums: list[Tensor] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation, and record what it reads."""
        leaves, is_wrapper = tree_leaves((args, kwargs)), _is_in_wrapper()
        first_read = len(self._sums)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                is_weight = isinstance(leaf, nn.Parameter)
                self._read(leaf, is_value=not is_wrapper and (self._weights or not is_weight))
        out = func(*args, **kwargs)
        outputs = tree_leaves(out)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        is_drawn = not given and torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        results = [output for output in outputs if isinstance(output, Tensor)]
        for output in results:
            self._read(output, is_value=is_drawn)
        if is_wrapper:
            return out
        numbers, result = _numbers(leaves), f"{_numbers(outputs)} {_visible(results, given)}"
        frame = user_frame()
        source = SourceLine() if frame is None else locate_frame(frame)
        self._operations.append(_Operation(str(func), numbers, first_read, result, source))
        return out

    def _read(self, tensor: Tensor, *, is_value: bool) -> None:
        part = local_tensor(tensor).detach()
        if type(part) not in _KINDS or not is_plain(part) or part.is_meta or not part.numel():
            return
        storage = part.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known[storage._cdata] = storage
        if is_value:
            few = part if part.numel() <= _LARGEST else part.flatten()[:_LARGEST]
            self._sums.append(checksums([few])[0])

    def first_difference(self, other: ValuesRead) -> str:
        """Return the line at which two passes read different values; empty if they do not."""
        mine, its = _on_host(self._sums), _on_host(other._sums)
        for at, (one, two) in enumerate(zip(self._operations, other._operations, strict=False)):
            reads = mine[one.first_read : self._end(at)] == its[two.first_read : other._end(at)]
            if (one.name, one.numbers) != (two.name, two.numbers) or not reads:
                return _text(two.source)
            if one.result != two.result:
                return ""
        if len(self._operations) == len(other._operations):
            return ""
        longer = max(self._operations, other._operations, key=len)
        return _text(longer[min(len(self._operations), len(other._operations))].source)

    def _end(self, at: int) -> int:
        following = self._operations[at + 1 : at + 2]
        return following[0].first_read if following else len(self._sums)


def _is_in_wrapper() -> bool:
    """Return whether DDP or FSDP2 runs the operation, and not a layer or the user."""
    frame = sys._getframe(3)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if file.startswith(_WRAPPERS):
            return True
        if not file.startswith(_TORCH) or file.startswith(_LAYERS):
            return False
        frame = frame.f_back
    return False


def _visible(results: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
    """Return what the program can see of results: shapes, and values that are copied to the host."""
    shapes: list[Any] = [tuple(result.shape) for result in results]
    if any(not tensor.is_cpu for tensor in given):
        shapes += [r.tolist() for r in results if type(r) in _KINDS and r.is_cpu and not r.is_meta]
    return shapes


def _numbers(leaves: Sequence[Any]) -> str:
    trained = [leaf.requires_grad for leaf in leaves if isinstance(leaf, nn.Parameter)]
    return repr([*trained, *(leaf for leaf in leaves if isinstance(leaf, _COMPARED))])


def _on_host(sums: Sequence[Tensor]) -> list[int]:
    if not sums:
        return []
    numbers: list[int] = torch.stack([value.to(sums[0].device) for value in sums]).tolist()
    return numbers


def _text(source: SourceLine) -> str:
    if not source.file:
        return "an operation of a library"
    return f"{Path(source.file).name}:{source.line} ({source.code})"
