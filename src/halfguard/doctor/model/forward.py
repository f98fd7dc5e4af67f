"""One forward pass, watched: in which dtype every matrix product ran, and under which autocast.

Configuration says what somebody wished; the operands of ``aten.mm`` say what happened. A dispatch mode
sees them below autocast, after every cast. A function mode stands above it and knows what the dispatch
mode cannot: whether autocast was on, and which operands a call was made with that raised.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfguard.trace.modules import ModuleStack
from halfguard.workload.frames import user_frame
from halfguard.workload.out_of_memory import is_out_of_memory

# The operations whose arithmetic is a matrix product, on any device: those that 16 bits are meant for.
_PRODUCT = re.compile(
    r"(add|b|addb|baddb|_grouped_|_scaled_)?mm|_addmm_activation|(add)?mv|.*convolution.*|.*_rnn.*"
    r"|.*attention.*"
)


@dataclass(frozen=True)
class Product:
    """One matrix product: its operands' dtype, the module it ran in, and the autocast around it."""

    dtype: torch.dtype
    module: str | None  # None outside of the model, as in a loss
    autocast: torch.dtype | None


@dataclass(frozen=True)
class Raised:
    """What the forward pass raised, and where."""

    message: str
    place: str  # the line of the user's code, or nothing
    module: str = ""
    operation: str = ""
    dtypes: tuple[torch.dtype, ...] = ()  # of the operands, without repetition
    autocast: torch.dtype | None = None
    out_of_memory: bool = False


@dataclass
class Forward:
    """What was seen in one forward pass."""

    products: list[Product] = field(default_factory=list)
    weights: Counter[torch.dtype] = field(default_factory=Counter)  # elements that are trained
    result: Any = None
    raised: Raised | None = None


def watch(model: nn.Module, step: Callable[[], Any], device_type: str) -> Forward:
    """Run ``step``, which calls ``model``, and tell what its products ran in; nothing is raised."""
    seen, stack = Forward(weights=_weights(model)), ModuleStack()
    above = _Above(device_type, stack)
    with _quiet(), stack.following(model), above, _Below(seen, above, stack):
        try:
            with torch.inference_mode(False), torch.enable_grad():  # as in training
                seen.result = step()
        except Exception as error:  # noqa: BLE001  whatever the user's code raises is told
            call = above.failed or _Call()
            seen.raised = Raised(
                message=(str(error) or type(error).__name__).splitlines()[0],
                place=user_frame(error),
                module=call.module,
                operation=call.operation,
                dtypes=call.dtypes,
                autocast=call.autocast,
                out_of_memory=is_out_of_memory(error),
            )
    return seen


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of a run that is not the user's; compiled code runs as it was written."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        yield


def _weights(model: nn.Module) -> Counter[torch.dtype]:
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad] or parameters
    counts: Counter[torch.dtype] = Counter()
    for parameter in trained:
        counts[parameter.dtype] += parameter.numel()
    return counts


@dataclass(frozen=True)
class _Call:
    """A call of a torch function, as its caller made it."""

    module: str = ""
    operation: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    autocast: torch.dtype | None = None


class _Above(TorchFunctionMode):
    """Sees calls before autocast does."""

    def __init__(self, device_type: str, stack: ModuleStack) -> None:
        super().__init__()
        self._device_type, self._stack = device_type, stack
        self.autocast: torch.dtype | None = None
        self.failed: _Call | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on = torch.is_autocast_enabled(self._device_type)
        self.autocast = torch.get_autocast_dtype(self._device_type) if on else None
        module = self._stack.current or ""
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            name = getattr(func, "__name__", str(func))
            self.failed = _Call(module, name, _dtypes((args, kwargs)), self.autocast)
            raise


class _Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations after autocast has cast their operands."""

    def __init__(self, seen: Forward, above: _Above, stack: ModuleStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen, self._above, self._stack = seen, above, stack

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _PRODUCT.fullmatch(func.overloadpacket.__name__):
            dtypes = _dtypes(args)
            if dtypes:
                found = Product(dtypes[0], self._stack.current, self._above.autocast)
                self._seen.products.append(found)
        return func(*args, **(kwargs or {}))


def _dtypes(values: Any) -> tuple[torch.dtype, ...]:
    """The floating-point dtypes among some arguments, each once, in their order."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return tuple(dict.fromkeys(t.dtype for t in tensors if t.is_floating_point()))
