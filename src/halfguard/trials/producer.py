"""The operation that keeps making bad numbers: its place in the user's code, and in the model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Self

from torch import nn

from halfguard.precision.rescaled import can_be_rescaled
from halfguard.records import Culprit
from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.step.parameters import without_wrappers
from halfguard.trials.cost import StepCosts
from halfguard.trials.line_islands import class_of

Lines = Literal["all", "of modules", "none"]  # that can be islands


def find_candidates(
    producer: Producer, model: nn.Module, costs: StepCosts, *, lines: Lines, rescaling: bool
) -> list[AnyIsland]:
    """Return the islands that may fix a fault, innermost first.

    They are the module of the operation (rescaled first, where it is a linear layer), its parents, the whole
    model, and the line (rescaled first, where it multiplies matrices). A fault outside every module, in the
    loss function for example, has its line only.
    """
    found: list[AnyIsland] = []
    modules = modules_by_name(model)
    path = None if producer.module is None else without_wrappers(producer.module)
    if rescaling and path in modules and can_be_rescaled(modules[path]):
        found.append(Island(module=path, kind="rescaled"))
    while path:
        # A list of modules is never called itself.
        if path in modules and not isinstance(modules[path], nn.ModuleList | nn.ModuleDict):
            found.append(Island(module=path))
        path = path.rpartition(".")[0]
    if path is not None:
        found.append(Island(module=""))
    own = None if producer.module is None else modules.get(without_wrappers(producer.module))
    can_be_line = lines == "all" or (lines == "of modules" and own is not None)
    if can_be_line and not producer.compiled and producer.file and producer.code:
        line = LineIsland(
            file=producer.file,
            line=producer.line,
            code=producer.code,
            within="" if own is None else class_of(own),
        )
        if rescaling and costs.of([line]).flops:
            found.append(line.model_copy(update={"kind": "rescaled"}))
        found.append(line)
    return found


def _place_of(island: AnyIsland) -> str:
    if isinstance(island, LineIsland):
        return f"line {island.file}:{island.line}"
    if not island.module:
        return "the whole model"
    return f"{'modules' if '*' in island.module else 'module'} {island.module}"


def name_of(island: AnyIsland) -> str:
    """Return the name of an island, for people and as a key."""
    return f"{_place_of(island)}{' (rescaled)' if island.kind == 'rescaled' else ''}"


def short_change(island: AnyIsland) -> str:
    """Return what an island changes, as a name."""
    return f"{_place_of(island)} {'rescaled' if island.kind == 'rescaled' else 'in FP32'}"


def describe_change(island: AnyIsland) -> str:
    """Return what an island changes, as the beginning of a sentence."""
    place = _place_of(island)
    be, run, of_it = ("are", "run", "their") if "*" in place else ("is", "runs", "its")
    if island.kind == "rescaled":
        return f"{place} {be} rescaled ({of_it} matrix products stay in 16-bit precision)"
    return f"{place} {run} in FP32"


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules by their paths without wrappers; of several, the outermost.

    The outermost of checkpointing's wrapper and its module is the wrapper, so that an island holds when the
    module is computed again.
    """
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found.setdefault(without_wrappers(path), module)
    return found


@dataclass(frozen=True, slots=True)
class Producer:
    """The place of a fault; two faults at one place have the same ``key``."""

    module: str | None  # path in the model, empty for the model itself; None outside the model
    file: str
    line: int
    code: str
    op: str
    phase: str
    dtype: str
    swallowed: str = ""  # "overflow" or "underflow", if loss and gradients were finite
    compiled: bool = False

    @classmethod
    def of(cls, culprit: Culprit | None) -> Self | None:
        """Return the producer of a culprit; None for bad weights or data, or an infinity that is meant."""
        if culprit is None or culprit.kind != "op" or culprit.intended:
            return None
        return cls(**{field.name: getattr(culprit, field.name) for field in fields(cls)})

    @property
    def key(self) -> str:
        """The place, without what may differ from batch to batch."""
        return f"{self.module} {self.file}:{self.line} {self.phase}"

    @property
    def place(self) -> str:
        """The user's line as ``file:line``."""
        return f"{self.file}:{self.line}" if self.file else "unknown place"

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        if self.module is None:
            inside = "outside every module"
        else:
            inside = f"in {self.module}" if self.module else "in the model's own forward"
        return f"{self.op} at {self.place}{code}, {inside}"
