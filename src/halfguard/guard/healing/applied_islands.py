"""Make and remove islands in a model and its averaged copies, for good or for one trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import nn

from halfguard.guard.healing.candidates import AnyIsland, modules_by_name
from halfguard.guard.healing.line_islands import LineIslands
from halfguard.guard.healing.model_islands import ModelIslands
from halfguard.precision.islands import is_island
from halfguard.records.plan import Island, LineIsland


class AppliedIslands:
    """The islands that the guard has made, beside those of a plan that the user gave."""

    def __init__(self, model: nn.Module, copies: Sequence[nn.Module], lines: LineIslands) -> None:
        self._model = model
        self._models = [ModelIslands(one) for one in (model, *copies)]
        self._lines = lines
        self._given_lines: tuple[LineIsland, ...] = ()  # of the user's plan
        self._made: tuple[AnyIsland, ...] = ()

    def keep_lines(self, lines: Sequence[LineIsland]) -> None:
        """Keep these lines in FP32 whatever is made or removed."""
        self._given_lines = tuple(lines)
        self._set_lines()

    def set(self, islands: Sequence[AnyIsland]) -> None:
        """Make exactly these islands; call it between two steps only."""
        self._made = tuple(islands)
        for model in self._models:
            model.set([island.module for island in islands if isinstance(island, Island)])
        self._set_lines()

    @contextmanager
    def trial(self, islands: Sequence[AnyIsland]) -> Iterator[None]:
        """Run the block with exactly these islands, then make the present ones again."""
        before = self._made
        with ExitStack() as stack:
            for model in self._models:
                stack.enter_context(model.keeping_weights())
            stack.callback(self.set, before)
            self.set(islands)
            yield

    def has_module(self, name: str) -> bool:
        """Return whether the model has a module of this name."""
        return name in modules_by_name(self._model)

    def covers(self, name: str) -> bool:
        """Return whether a module, or one that contains it, is an island already."""
        modules = modules_by_name(self._model)
        paths = [name, *(name[:end] for end, char in enumerate(name) if char == "."), ""]
        return any(path in modules and is_island(modules[path]) for path in paths)

    def _set_lines(self) -> None:
        own = [island for island in self._made if isinstance(island, LineIsland)]
        self._lines.set((*self._given_lines, *own))
