"""The place of an operation: module, line and phase; a backward operation has the place of its forward one.

Autograd numbers its nodes, and gives a node its number just before the operation runs. So the current number
identifies the node of a forward operation, and its place is known when the engine runs the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, Literal

import torch
from torch import nn

from halfguard.records.autopsy import Culprit
from halfguard.step.parameters import COMPILED, without_wrappers
from halfguard.tracing.source import SourceLine, locate_frame


class ModuleStack:
    """The modules whose forward is running, outermost first."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    @property
    def current(self) -> str | None:
        """The path of the innermost module: empty for the model itself, None outside of it."""
        return self._paths[-1] if self._paths else None

    @contextmanager
    def tracking(self, model: nn.Module, *, compiled: bool = True) -> Iterator[None]:
        """Track the stack while the block runs; the hooks are always removed.

        Without ``compiled``, modules inside a compiled one have no hooks, so that its code stays valid.
        """
        handles: list[Any] = []
        try:
            for path, module in model.named_modules() if compiled else visible_modules(model):
                enter = self._enter(without_wrappers(path, (COMPILED,)))
                handles.append(module.register_forward_pre_hook(enter))
                # always_call: also for a module that raises.
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._paths.clear()

    def _enter(self, path: str) -> Callable[[nn.Module, Any], None]:
        def enter(_module: nn.Module, _args: Any) -> None:
            if not torch.compiler.is_compiling():
                self._paths.append(path)

        return enter

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._paths and not torch.compiler.is_compiling():
            self._paths.pop()


def visible_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that run as Python; a module compiled by ``torch.compile`` is one of them."""
    hidden: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if hidden and path.startswith(hidden):
            continue
        if hasattr(module, COMPILED):
            hidden += (f"{path}.{COMPILED}" if path else COMPILED,)
        yield path, module


@dataclass(frozen=True, slots=True)
class OperationPlace:
    """An operation in the user's code."""

    op: str
    phase: Literal["forward", "backward"]
    module: str | None
    source: SourceLine

    def facts(self) -> dict[str, Any]:
        """Return the fields that every record of an operation has."""
        source = self.source
        place = {"file": source.file, "line": source.line, "code": source.code}
        return {"op": self.op, "phase": self.phase, "module": self.module, **place}

    def culprit(self, **facts: Any) -> Culprit:
        """Return a culprit at this place, with the facts of the caller."""
        return Culprit(**self.facts(), compiled=self.source.compiled, **facts)


class OperationPlaces:
    """Remembers the place of each autograd node."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        self._modules = modules
        self._outermost = outermost
        self._made: dict[int, OperationPlace] = {}

    def of(self, packet: str, frame: FrameType | None) -> OperationPlace:
        """Return the place of the operation that is running."""
        op = display_name(packet)
        node = current_node()
        source = SourceLine() if frame is None else locate_frame(frame, self._outermost)
        if node is None:
            return self._remember(OperationPlace(op, "forward", self._modules.current, source))
        made = self._made.get(node_number(node))
        if frame is None:  # torch's own formula for a gradient
            if made is None:
                return OperationPlace(node.name(), "backward", None, source)
            return replace(made, phase="backward")
        module = made.module if made else None
        if not source.recomputed:  # the user's own: a custom autograd function, or a hook
            return OperationPlace(op, "backward", module, source)
        inner = self._modules.current
        return self._remember(
            OperationPlace(op, "forward", module if inner is None else inner, source)
        )

    def _remember(self, where: OperationPlace) -> OperationPlace:
        self._made.setdefault(last_node_number(), where)
        return where


def current_node() -> Any:
    """Return the autograd node that is running; None outside a backward pass."""
    return torch._C._current_autograd_node()


def node_number(node: Any) -> int:
    """Return the number that autograd gave a node when an operation made it."""
    number: int = node._sequence_nr()
    return number


def last_node_number() -> int:
    """Return the number of the last node made in this thread; operations without a gradient make none.

    So the first operation that sees a number owns the node.
    """
    return torch._C._autograd._get_sequence_nr() - 1


def display_name(packet: str) -> str:
    """Return the common name: ``softmax`` for ``_softmax``, ``div`` for ``div_``."""
    plain = packet.strip("_").removeprefix("native_").removesuffix("_forward")
    return plain.removesuffix("_copy")
