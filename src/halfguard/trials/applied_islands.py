"""Make and remove islands in a model and its averaged copies, for good or for one trial."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from halfguard.dist.wrapping import disable_fsdp_mixed_precision
from halfguard.precision.islands import (
    is_fp32_island,
    is_island,
    make_island,
    make_rescaled,
    remove_island,
)
from halfguard.precision.modes import HALF_DTYPES
from halfguard.precision.upcast import replace_data
from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.step.parameters import is_covered, outermost
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.producer import modules_by_name

# The islands of one model, changed between two steps.
#
# Weights of a model that is half by itself are FP32 inside an island, and half again once no island
# holds them any more. Islands may lie inside each other: a module, and later its parent. Only the
# outermost is made; the inner one is made when the outer one is taken back. So weights that stay
# inside some island are never rounded on the way from one set of islands to another. A trial may
# leave an island out, and rounds its weights; they are put back afterwards (``keeping_weights``).


class ModelIslands:
    """Makes and removes islands in a model; those that the user made are there again afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._made: dict[str, tuple[str, nn.Module, Callable[[], None]]] = {}
        # Tensors that were half before an island held them, with their dtypes.
        self._half_weights: dict[int, tuple[nn.Parameter, torch.dtype]] = {}
        self._half_buffers: dict[tuple[int, str], tuple[nn.Module, str, torch.dtype]] = {}

    def set(self, islands: Sequence[Island]) -> None:
        """Make exactly these modules islands, or the modules that contain them."""
        modules = modules_by_name(self._model)
        wide = [
            path for island in islands if island.kind == "fp32" for path in island.members(modules)
        ]
        rescaled = [
            path for island in islands if island.kind != "fp32" for path in island.members(modules)
        ]
        wanted = dict.fromkeys(outermost(wide), "fp32")
        wanted |= {path: "rescaled" for path in rescaled if not is_covered(path, wanted)}
        for path in [path for path, (kind, _, _) in self._made.items() if wanted.get(path) != kind]:
            _, module, as_before = self._made.pop(path)
            remove_island(module)
            as_before()
        for path, kind in wanted.items():
            if path in self._made or is_fp32_island(modules[path]):
                continue
            if kind == "fp32":
                self._make(path, modules[path])
            elif not is_island(modules[path]):
                self._made[path] = kind, make_rescaled(modules[path]), lambda: None
        self._cast_weights()

    @contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Put back after the block, which ends with these islands, each tensor that an island casts."""
        weights = [
            (parameter, parameter.data)
            for parameter in self._model.parameters()
            if parameter.dtype in HALF_DTYPES or id(parameter) in self._half_weights
        ]
        buffers = [
            (owner, name, buffer)
            for owner in self._model.modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if buffer.dtype in HALF_DTYPES or (id(owner), name) in self._half_buffers
        ]
        try:
            yield
        finally:
            for parameter, data in weights:
                parameter.data = data
            for owner, name, buffer in buffers:
                owner._buffers[name] = buffer

    def _make(self, path: str, module: nn.Module) -> None:
        self._note_half_tensors(module)
        rescaled_by_user = is_island(module)
        remove_island(module)
        # FSDP2 gathers weights, and casts inputs, as its own policy says.
        gather_as_before = disable_fsdp_mixed_precision(module)
        by_user = _held_by(inner for inner in module.modules() if is_fp32_island(inner))
        own = [p for p in module.parameters() if id(p) not in by_user]
        make_island(module, in_half_model=all(id(p) in self._half_weights for p in own))

        def as_before() -> None:
            gather_as_before()
            if rescaled_by_user:
                make_rescaled(module)

        self._made[path] = "fp32", module, as_before

    def _note_half_tensors(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.dtype in HALF_DTYPES:
                self._half_weights[id(parameter)] = parameter, parameter.dtype
        for owner in module.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                if buffer.dtype in HALF_DTYPES:
                    self._half_buffers[id(owner), name] = owner, name, buffer.dtype

    @torch.no_grad()
    def _cast_weights(self) -> None:
        """Cast what was half: to FP32 inside islands, and back to its dtype outside."""
        islands = [module for kind, module, _ in self._made.values() if kind == "fp32"]
        inside, modules = _held_by(islands), {id(m) for one in islands for m in one.modules()}
        for key, (parameter, dtype) in list(self._half_weights.items()):
            dtype = torch.float32 if key in inside else dtype  # noqa: PLW2901
            if parameter.dtype is not dtype:
                replace_data(parameter, parameter.data.to(dtype))
            if key not in inside:
                del self._half_weights[key]
        for place, (owner, name, dtype) in list(self._half_buffers.items()):
            buffer = owner._buffers.get(name)
            if buffer is not None:
                owner._buffers[name] = buffer.to(torch.float32 if place[0] in modules else dtype)
            if place[0] not in modules:
                del self._half_buffers[place]


def _held_by(modules: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


class AppliedIslands:
    """The islands that the guard has made, beside those of a plan that the user gave."""

    def __init__(
        self,
        model: nn.Module,
        copies: Sequence[nn.Module],
        lines: LineIslands,
        given_lines: Sequence[LineIsland] = (),
    ) -> None:
        self._model = model
        self._models = [ModelIslands(one) for one in (model, *copies)]
        self._lines = lines
        self._given_lines = given_lines  # of the user's plan
        self._made: tuple[AnyIsland, ...] = ()

    def set(self, islands: Sequence[AnyIsland]) -> None:
        """Make exactly these islands; call it between two steps only."""
        self._made = tuple(islands)
        self._lines.set(())  # they may wrap a module that becomes an island
        for model in self._models:
            model.set([island for island in islands if isinstance(island, Island)])
        own = [island for island in islands if isinstance(island, LineIsland)]
        self._lines.set((*self._given_lines, *own))

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

    def has_modules(self, island: Island) -> bool:
        """Return whether the model has a module that the island names."""
        return bool(island.members(modules_by_name(self._model)))

    def covers(self, name: str) -> bool:
        """Return whether a module, or one that contains it, is an FP32 island already."""
        modules = modules_by_name(self._model)
        paths = [name, *(name[:end] for end, char in enumerate(name) if char == "."), ""]
        return any(path in modules and is_fp32_island(modules[path]) for path in paths)
