"""What leaves 16 bits with an island: its share of the FLOPs of matrix products, then of bytes.

Counted in one forward pass, by module and by line. The products of the backward pass are those of the forward
pass twice over, so their shares are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from halfguard.records.plan import AnyIsland, LineIsland
from halfguard.step.nested import tensors_in
from halfguard.step.parameters import without_wrappers
from halfguard.tracing.call_arguments import OperationMode
from halfguard.tracing.operation_places import ModuleStack, current_node
from halfguard.tracing.products import product_flops
from halfguard.trials.line_islands import line_of_call

Place = tuple[str | None, str, int]  # module, file, line


class Cost(NamedTuple):
    """Shares of a step, from 0 to 1."""

    flops: float
    bytes: float


NOTHING = Cost(0.0, 0.0)


@dataclass
class StepCosts:
    """FLOPs and bytes of the results of a step's operations."""

    places: dict[Place, tuple[float, int]] = field(default_factory=dict)

    def of(self, islands: Iterable[AnyIsland]) -> Cost:
        """Return what islands take out of half together."""
        chosen = list(islands)
        flops = size = 0.0
        for place, (own_flops, own_size) in self.places.items():
            covering = [island for island in chosen if _covers(island, place)]
            if covering:
                size += own_size
            if any(island.kind == "fp32" for island in covering):
                flops += own_flops
        all_flops, all_size = (
            map(sum, zip(*self.places.values(), strict=True)) if self.places else (0, 0)
        )
        return Cost(flops / all_flops if all_flops else 0.0, size / all_size if all_size else 0.0)


def _covers(island: AnyIsland, place: Place) -> bool:
    module, file, line = place
    if isinstance(island, LineIsland):
        return (file, line) == (island.file, island.line)
    if module is None:
        return False
    if not island.module:
        return True
    depth = island.module.count(".") + 1
    return bool(island.members([".".join(module.split(".")[:depth])]))


class _Counter(OperationMode):  # type: ignore[no-untyped-call]
    def __init__(self, modules: ModuleStack) -> None:
        super().__init__()
        self.costs = StepCosts()
        self._modules = modules

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if current_node() is None:
            module = self._modules.current
            line = line_of_call() or ("", 0)
            place = (None if module is None else without_wrappers(module), *line)
            flops, size = self.costs.places.get(place, (0.0, 0))
            flops += product_flops(func, args, kwargs, out) or 0.0
            size += sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(out))
            self.costs.places[place] = flops, size
        return out


@contextmanager
def counted_costs(model: nn.Module) -> Iterator[StepCosts]:
    """Count the forward passes that the block runs."""
    modules = ModuleStack()
    counter = _Counter(modules)
    with modules.tracking(model), counter:
        yield counter.costs
