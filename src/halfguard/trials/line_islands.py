"""Lines of the user's code that run in FP32.

A fault in a loss function, or in the forward of a large module, has no small module to make an island of. A
function mode sees every call of torch with the line that made it. For the chosen lines, half arguments are
cast to FP32 and autocast is off; results stay FP32, and autocast lowers them for the next matrix product.
Modules with weights that a line calls run as ever: in ``self.up(x) * self.gate(x)``, only the last product is
the line's own. In a rescaled line, matrix products stay in half (``precision.rescaled``).

Who runs the loss function activates the mode around it. In a loop of somebody else the mode is active in the
forward of the modules that a line belongs to (``attach``), also when checkpointing calls them again.

The mode must be active in the backward pass as well, where checkpointing computes forward passes again. Code
that torch.compile has compiled calls no torch function, so lines need eager mode.
"""

from __future__ import annotations

import functools
import linecache
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from halfguard.precision.islands import is_fp32_island
from halfguard.precision.modes import HALF_DTYPES, full_precision
from halfguard.precision.rescaled import lowered_dtype, rescaled_product
from halfguard.precision.upcast import cast_to_fp32
from halfguard.records.plan import IslandKind, LineIsland
from halfguard.tracing.source import user_frame

logger = logging.getLogger("halfguard")

_TO_HALF = (torch.Tensor.half, torch.Tensor.bfloat16)
_PRODUCTS = (
    *(torch.matmul, torch.bmm, torch.mm),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm),
)
# Others run as they are in a rescaled line: the search then finds that it needs FP32.
_OTHER_PRODUCTS = (
    *(torch.einsum, torch.baddbmm, torch.addmm, torch.addbmm, torch.mv, torch.dot),
    *(functional.linear, functional.bilinear, functional.scaled_dot_product_attention),
    *(functional.conv1d, functional.conv2d, functional.conv3d, Tensor.baddbmm, Tensor.addmm),
)
_CALLING_A_MODULE = nn.Module._call_impl.__code__


class LineIslands:
    """The lines that run in FP32 at present."""

    def __init__(self, islands: Iterable[LineIsland] = ()) -> None:
        self._places: dict[tuple[str, int], IslandKind] = {}
        self._islands: tuple[LineIsland, ...] = ()
        self._model: nn.Module | None = None
        self._wrapped: list[nn.Module] = []
        self.set(islands)

    def set(self, islands: Iterable[LineIsland]) -> None:
        """Let exactly these lines run in FP32."""
        self._islands = tuple(islands)
        files = [(_in_this_checkout(island.file), island) for island in self._islands]
        found = {(file, _find_line(file, island)): island.kind for file, island in files}
        self._places = {place: kind for place, kind in found.items() if place[1]}
        self._wrap_modules()

    def attach(self, model: nn.Module) -> None:
        """Apply the lines in the modules of ``model`` that they belong to, from now on."""
        self._model = model
        self._wrap_modules()

    @property
    def unattached(self) -> tuple[LineIsland, ...]:
        """The lines that no module of the attached model has: those of a loss function."""
        classes = {name for module in self._wrapped for name in _class_names(module)}
        return tuple(island for island in self._islands if island.within not in classes)

    def active(self) -> AbstractContextManager[Any]:
        """Return the context in which the lines run in FP32."""
        return _LineMode(self._places) if self._places and self._model is None else nullcontext()

    def _wrap_modules(self) -> None:
        for module in self._wrapped:
            original = vars(module).pop("forward").args[-1]
            if getattr(original, "__func__", None) is not type(module).forward:
                module.forward = original
        self._wrapped.clear()
        if self._model is None:
            return
        within = {island.within for island in self._islands if island.within}
        for module in self._model.modules() if within else ():
            if within & _class_names(module) and not is_fp32_island(module):
                module.forward = functools.partial(_run_with_lines, self._places, module.forward)
                self._wrapped.append(module)


def class_of(module: nn.Module) -> str:
    """Return the name of a module's class, as before FSDP2 wrapped it."""
    names = (cls.__name__ for cls in type(module).__mro__)
    return next(name for name in names if not name.startswith("FSDP"))


def _class_names(module: nn.Module) -> set[str]:
    return {cls.__name__ for cls in type(module).__mro__}


def _run_with_lines(
    places: dict[tuple[str, int], IslandKind],
    forward: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    with _LineMode(places):
        return forward(*args, **kwargs)


class _LineMode(TorchFunctionMode):
    def __init__(self, places: dict[tuple[str, int], IslandKind]) -> None:
        super().__init__()
        self._places = places
        device = torch.accelerator.current_accelerator()
        self._accelerator = "cuda" if device is None else device.type

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            return self._run_backward(*args, **kwargs)
        place = line_of_call(LineIslands.active.__code__)
        kind = None if place is None else self._places.get(place)
        if kind is None or not _may_cast(func, kwargs):
            return func(*args, **kwargs)
        if kind == "rescaled" and func in _PRODUCTS and len(args) == 2 and not kwargs:
            dtype = lowered_dtype(args[0].device.type, self._accelerator)
            if dtype is not None and min(args[0].dim(), args[1].dim()) > 1:
                return rescaled_product(*args, dtype)
        if kind == "rescaled" and func in _OTHER_PRODUCTS:
            return func(*args, **kwargs)
        func = torch.Tensor.float if func in _TO_HALF else func
        with full_precision("cpu"), full_precision(self._accelerator):
            return func(*map(_widen, args), **{name: _widen(v) for name, v in kwargs.items()})

    def _run_backward(self, loss: Tensor, gradient: Tensor | None = None, **options: Any) -> None:
        """Run the backward pass with this mode on: torch switches a mode off inside the calls that it sees.

        An edge of the graph is no tensor, so that torch does not ask the mode again.
        """
        edge = torch.autograd.graph.get_gradient_edge(loss)
        with self:
            torch.autograd.backward(edge, gradient, **options)


def line_of_call(outermost: CodeType | None = None) -> tuple[str, int] | None:
    """Return the user's line that calls torch; None if it does so through a module with weights."""
    user = user_frame(outermost)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not user:
        if frame.f_code is _CALLING_A_MODULE and any(
            True for _ in frame.f_locals["self"].parameters()
        ):
            return None
        frame = frame.f_back
    return None if user is None else (user.f_code.co_filename, user.f_lineno)


def _widen(value: Any) -> Any:
    """Return an argument in FP32: tensors are cast, and a half dtype, as in ``x.to(y.dtype)``, is FP32."""
    is_half = isinstance(value, torch.dtype) and value in HALF_DTYPES
    return torch.float32 if is_half else cast_to_fp32(value)


def _may_cast(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return False for calls that ask about a tensor, or write to one."""
    name = getattr(func, "__name__", "")
    if name in {"__get__", "__set__", "__setitem__", "register_hook"}:
        return False
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name not in {"__invert__", "__index__", "__int__"}
    return not in_place and not augmented and kwargs.get("out") is None


def _in_this_checkout(file: str) -> str:
    """Return the path of a file of the plan, or of the same file below the working folder."""
    parts = Path(file).parts
    below = (Path.cwd().joinpath(*parts[start:]) for start in range(1, len(parts)))
    return file if Path(file).is_file() else str(next((p for p in below if p.is_file()), file))


def _find_line(file: str, island: LineIsland) -> int:
    """Return the number of the line in the present source; 0 if it is not there, or there twice."""
    linecache.checkcache(file)
    if linecache.getline(file, island.line).strip() == island.code:
        return island.line
    lines = enumerate(linecache.getlines(file), start=1)
    same = [number for number, text in lines if text.strip() == island.code]
    if len(same) == 1:
        return same[0]
    logger.warning(
        "The plan keeps the line %r of %s in FP32, but %d lines of that file match it, so it runs "
        "in 16-bit precision.",
        island.code,
        file,
        len(same),
    )
    return 0
