"""One forward pass, watched: in which dtype every matrix product ran, and under which autocast.

Configuration says what somebody wished; the operands of ``aten.mm`` say what happened. A dispatch mode
sees them below autocast, after every cast. A function mode stands above it and knows what the dispatch
mode cannot: whether autocast was on, and which operands a call was made with that raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfguard.diagnosis.model.products import Around, Product, product_of
from halfguard.precision.modes import HALF_DTYPES
from halfguard.tracing.modules import ModuleStack
from halfguard.workload.out_of_memory import is_out_of_memory
from halfguard.workload.user_error import user_frame

# Where no 16-bit kernel fits they compute in FP32 inside, whatever they were given and whatever they return.
_ATTENTION = {
    nn.functional.scaled_dot_product_attention,
    nn.functional.multi_head_attention_forward,
}


@dataclass(frozen=True)
class Call:
    """A call of a torch function, as its caller made it."""

    operation: str = ""
    dtypes: tuple[torch.dtype, ...] = ()  # of the operands, without repetition
    around: Around = field(default_factory=Around)


@dataclass(frozen=True)
class Raised:
    """What the forward pass raised, and where."""

    message: str
    place: str  # the line of the user's code, or nothing
    call: Call = field(default_factory=Call)  # the one that was refused, if it was a call of torch
    out_of_memory: bool = False
    missing_attribute: bool = False


@dataclass
class Forward:
    """What was seen in one forward pass."""

    products: list[Product] = field(default_factory=list)
    result: Any = None
    raised: Raised | None = None


def watch(model: nn.Module, step: Callable[[], Any], device_type: str) -> Forward:
    """Run ``step``, which calls ``model``, and tell what its products ran in; nothing is raised."""
    seen, stack = Forward(), ModuleStack()
    above = _Above(device_type, stack)
    with _quiet(), stack.following(model), above, _Below(seen, above):
        try:
            with torch.inference_mode(False), torch.enable_grad():  # as in training
                seen.result = step()
        except Exception as error:  # noqa: BLE001  whatever the user's code raises is told
            seen.raised = Raised(
                message=(str(error) or type(error).__name__).splitlines()[0],
                place=user_frame(error),
                call=above.refused(error),
                out_of_memory=is_out_of_memory(error),
                missing_attribute=isinstance(error, AttributeError),
            )
        finally:
            above.failed = None  # an error holds the frames of the pass, and with them this mode
    return seen


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of a run that is not the user's; compiled code runs as it was written."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        yield


class _Above(TorchFunctionMode):
    """Sees calls before autocast does."""

    def __init__(self, device_type: str, stack: ModuleStack) -> None:
        super().__init__()
        self._device_type, self._stack = device_type, stack
        self.autocast: torch.dtype | None = None
        self.island = False
        self.attention: torch.dtype | None = None
        self.failed: tuple[Exception, Call] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on = torch.is_autocast_enabled(self._device_type)
        self.autocast = torch.get_autocast_dtype(self._device_type) if on else None
        self.island = not on and _autocasts() > 1
        self.attention = self._attention(args, kwargs) if func in _ATTENTION else None
        around = self.around
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            name = getattr(func, "__name__", str(func))
            self.failed = error, Call(name, _dtypes((args, kwargs)), around)
            raise

    @property
    def around(self) -> Around:
        """What surrounds the call that is on the way."""
        return Around(self._stack.current, self.autocast, self.island, self.attention)

    def refused(self, error: Exception) -> Call:
        """The call that raised this very error: the user may have caught another one before."""
        return self.failed[1] if self.failed is not None and self.failed[0] is error else Call()

    def _attention(self, args: Any, kwargs: Any) -> torch.dtype | None:
        given = self.autocast or next(iter(_dtypes((args, kwargs))), None)
        return given if given in HALF_DTYPES else None


class _Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations after autocast has cast their operands."""

    def __init__(self, seen: Forward, above: _Above) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen, self._above = seen, above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = product_of(func, args, kwargs or {}, result, self._above.around)
        if found is not None:
            self._seen.products.append(found)
        return result


def _autocasts() -> int:
    """How many autocast regions, on or off, are around here; torch tells it in passing only."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _dtypes(values: Any) -> tuple[torch.dtype, ...]:
    """The floating-point dtypes among some arguments, each once, in their order."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return tuple(dict.fromkeys(t.dtype for t in tensors if t.is_floating_point()))
