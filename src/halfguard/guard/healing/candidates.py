"""The islands that may cure a fault, smallest first: the module, its parents, the line, the whole model.

The whole model comes after the line: it would give up half precision altogether. A fault outside every
module, in the loss function for example, has its line only.
"""

from __future__ import annotations

from torch import nn

from halfguard.guard.healing.producer import Producer
from halfguard.records.plan import Island, LineIsland
from halfguard.step.parameters import without_wrappers

AnyIsland = Island | LineIsland


def find_candidates(producer: Producer, model: nn.Module, *, eager: bool) -> list[AnyIsland]:
    """Return the islands to try, in this order; lines only in ``eager`` mode."""
    found: list[AnyIsland] = []
    modules = modules_by_name(model)
    path = None if producer.module is None else without_wrappers(producer.module)
    while path:
        # A list of modules is never called itself.
        if path in modules and not isinstance(modules[path], nn.ModuleList | nn.ModuleDict):
            found.append(Island(module=path))
        path = path.rpartition(".")[0]
    if eager and not producer.compiled and producer.file and producer.code:
        found.append(LineIsland(file=producer.file, line=producer.line, code=producer.code))
    if path is not None:
        found.append(Island(module=""))
    return found


def name_of(island: AnyIsland) -> str:
    """Return the name of an island, for people and as a key."""
    if isinstance(island, LineIsland):
        return f"line {island.file}:{island.line}"
    return f"module {island.module}" if island.module else "the whole model"


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules by their paths without wrappers; of several, the outermost.

    The outermost of checkpointing's wrapper and its module is the wrapper, so that an island holds when the
    module is computed again.
    """
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found.setdefault(without_wrappers(path), module)
    return found
