"""The place of an operation: module, line and phase, for a backward operation those of its forward one.

Autograd numbers its nodes, and gives a node its number just before it runs the operation. So the number at
which a forward operation is seen is its node's, and when the engine runs the node the place is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, Literal

import torch

from halfguard.records.culprit import Culprit
from halfguard.tracing.modules import ModuleStack
from halfguard.tracing.source import Source, source_of


@dataclass(frozen=True, slots=True)
class Where:
    """An operation as its user wrote it."""

    op: str
    phase: Literal["forward", "backward"]
    module: str | None
    source: Source

    def culprit(self, **facts: Any) -> Culprit:
        """A culprit at this place, with the facts that only its finder knows."""
        source = self.source
        return Culprit(
            op=self.op,
            phase=self.phase,
            module=self.module,
            file=source.file,
            line=source.line,
            code=source.code,
            compiled=source.compiled,
            **facts,
        )


class Places:
    """Remembers where each node of autograd was made."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        self._modules = modules
        self._outermost = outermost
        self._made: dict[int, Where] = {}

    def of(self, packet: str, frame: FrameType | None) -> Where:
        """The place of the operation that is just being run."""
        op = _plain(packet)
        # Typed as a Node; None outside a backward pass.
        node: Any = torch._C._current_autograd_node()
        source = Source() if frame is None else source_of(frame, self._outermost)
        if node is None:
            return self._remember(Where(op, "forward", self._modules.current, source))
        made = self._made.get(node._sequence_nr())
        if frame is None:  # torch's own formula for a gradient
            if made is None:
                return Where(node.name(), "backward", None, source)
            return replace(made, phase="backward")
        module = made.module if made else None
        if not source.recomputed:  # the user's own: a custom autograd function, or a hook
            return Where(op, "backward", module, source)
        inner = self._modules.current
        return self._remember(Where(op, "forward", module if inner is None else inner, source))

    def _remember(self, where: Where) -> Where:
        # The first of a number is the node's own: operations without a gradient take none.
        self._made.setdefault(torch._C._autograd._get_sequence_nr() - 1, where)
        return where


def _plain(packet: str) -> str:
    """The name that people know: ``softmax`` for ``_softmax``, ``div`` for ``div_``."""
    plain = packet.strip("_").removeprefix("native_").removesuffix("_forward")
    return plain.removesuffix("_copy")
