"""Make and remove islands in a model and its averaged copies, for good or for one trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from halfguard.dist.wrapping import disable_fsdp_mixed_precision
from halfguard.guard.healing.candidates import AnyIsland, modules_by_name, name_of
from halfguard.guard.healing.line_islands import LineIslands
from halfguard.precision.islands import fp32_island, is_island, remove_island
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.plan import Island, LineIsland

Undo = Callable[[], None]


class AppliedIslands:
    """The islands that the guard has made, beside those of a plan that the user gave."""

    def __init__(self, model: nn.Module, copies: Sequence[nn.Module], lines: LineIslands) -> None:
        self._models = (model, *copies)
        self._lines = lines
        self._given_lines: tuple[LineIsland, ...] = ()  # of the user's plan
        self._made: dict[str, tuple[AnyIsland, list[Undo]]] = {}

    def keep_lines(self, lines: Sequence[LineIsland]) -> None:
        """Keep these lines in FP32 whatever is made or removed."""
        self._given_lines = tuple(lines)
        self._set_lines()

    def set(self, islands: Sequence[AnyIsland]) -> None:
        """Make exactly these islands; call it between two steps only."""
        wanted = {name_of(island): island for island in islands}
        for name in [name for name in self._made if name not in wanted]:
            self._remove(name)
        for name, island in wanted.items():
            if name not in self._made:
                self._make(name, island)

    @contextmanager
    def trial(self, islands: Sequence[AnyIsland]) -> Iterator[None]:
        """Run the block with exactly these islands, then make the present ones again."""
        before = [island for island, _ in self._made.values()]
        try:
            self.set(islands)
            yield
        finally:
            self.set(before)

    def has_module(self, name: str) -> bool:
        """Return whether the model has a module of this name."""
        return name in modules_by_name(self._models[0])

    def covers(self, name: str) -> bool:
        """Return whether a module, or one that contains it, is an island already."""
        modules = modules_by_name(self._models[0])
        paths = [name, *(name[:end] for end, char in enumerate(name) if char == "."), ""]
        return any(path in modules and is_island(modules[path]) for path in paths)

    def _make(self, name: str, island: AnyIsland) -> None:
        undo: list[Undo] = []
        if isinstance(island, Island):
            for model in self._models:
                module = modules_by_name(model).get(island.module)
                if module is not None and not is_island(module):
                    undo.append(_make_island(module))
        self._made[name] = (island, undo)
        self._set_lines()

    def _remove(self, name: str) -> None:
        for undo in self._made.pop(name)[1]:
            undo()
        self._set_lines()

    def _set_lines(self) -> None:
        own = [island for island, _ in self._made.values() if isinstance(island, LineIsland)]
        self._lines.set((*self._given_lines, *own))


def _make_island(module: nn.Module) -> Undo:
    """Make an island; return a function that removes it, and makes its weights half again."""
    half = [(p, p.dtype) for p in module.parameters() if p.dtype in HALF_DTYPES]
    owners = [
        (owner, name, buffer.dtype)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
        if buffer.dtype in HALF_DTYPES
    ]
    # FSDP2 gathers weights, and casts inputs, as its own policy says.
    gather_as_before = disable_fsdp_mixed_precision(module)
    fp32_island(module)

    @torch.no_grad()
    def undo() -> None:
        remove_island(module)
        gather_as_before()
        for parameter, dtype in half:
            grad, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None if grad is None else grad.to(dtype)
        for owner, name, dtype in owners:
            buffer = owner._buffers[name]
            owner._buffers[name] = None if buffer is None else buffer.to(dtype)

    return undo
