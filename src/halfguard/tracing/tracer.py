"""``trace(model)``: the range of every layer's outputs and gradients, step by step.

The model has hooks only during a sampled step. A step ends when the caller calls ``tracer.step()``: only the
caller knows how many micro-batches it had.

A tensor is reduced as soon as it is seen. Keeping it until the end of the step would hold memory that
autograd frees, and an in-place operation could change it. "health" is one reduction, the smallest and the
largest value, which keeps NaN and infinity; "range" adds the histogram of exponents.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isnan
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.formats import dtype_name
from halfguard.numerics.histogram import BINS, INFINITE, NAN, ZERO, bin_index, histogram
from halfguard.numerics.tensor_rows import local_tensor, read_all
from halfguard.records.ranges import LayerStats, TensorPlace, TraceStep
from halfguard.step.nested import floating_tensors
from halfguard.tracing.operation_places import visible_modules

Detail = Literal["health", "range"]
Key = tuple[str, TensorPlace, str]


class TensorStatistics(NamedTuple):
    """The statistics of one tensor, still on the device, and its place in the model."""

    key: Key
    dtype: torch.dtype
    numel: int
    low: Tensor
    high: Tensor
    counts: Tensor | None  # one per bin, for "range"


def measure(key: Key, tensor: Tensor, detail: Detail) -> TensorStatistics:
    """Reduce one tensor on its device, without waiting for it."""
    local = local_tensor(tensor).detach()
    low, high = torch.aminmax(local)
    counts = count_binades(local) if detail == "range" else None
    return TensorStatistics(key, local.dtype, local.numel(), low, high, counts)


def fetch(rows: list[TensorStatistics]) -> tuple[LayerStats, ...]:
    """Copy all statistics to the host, one transfer per device, and merge the calls of each module."""
    measured = [[t for t in (row.low, row.high, row.counts) if t is not None] for row in rows]
    numbers = iter(read_all([tensor for some in measured for tensor in some]))
    by_key: dict[Key, tuple[list[TensorStatistics], list[list[float]]]] = {}
    for row, some in zip(rows, measured, strict=True):
        of_key = by_key.setdefault(row.key, ([], []))
        of_key[0].append(row)
        of_key[1].append([number for _ in some for number in next(numbers)])
    return tuple(_merge(*some) for some in by_key.values())


def count_binades(tensor: Tensor) -> Tensor:
    """Return the counts of ``numerics.histogram`` for one tensor.

    On a CPU the exponent is read from the bits, at a tenth of the cost. The one difference: values below
    the smallest normal of float32, 2**-126, are all counted in the bin of 2**-127.
    """
    if tensor.device.type != "cpu" or tensor.dtype is torch.float64:
        return histogram([tensor])[0]
    values = tensor.float().contiguous().view(-1)
    exponents = values.view(torch.int32).bitwise_right_shift(23).bitwise_and_(255)
    found = torch.bincount(exponents, minlength=256)
    tiny, huge = found[0].tolist(), found[255].tolist()  # read from memory: this is the CPU
    zeros = values.numel() - torch.count_nonzero(values) if tiny else 0
    nans = torch.count_nonzero(values.isnan()) if huge else 0
    counts = torch.zeros(BINS, dtype=torch.int64)
    counts[bin_index(-126) : bin_index(127) + 1] = found[1:255]
    counts[ZERO], counts[bin_index(-127)] = zeros, found[0] - zeros
    counts[INFINITE], counts[NAN] = found[255] - nans, nans
    return counts


def _merge(rows: list[TensorStatistics], numbers: list[list[float]]) -> LayerStats:
    module, place, name = rows[0].key
    calls = len(rows)
    if place == "param_grad":  # gradients accumulate: the last one is the sum
        rows, numbers = rows[-1:], numbers[-1:]
    bins: dict[int, int] = {}
    for line in numbers:
        for column, count in enumerate(line[2:]):
            if count:
                bins[column] = bins.get(column, 0) + int(count)
    return LayerStats(
        module=module,
        place=place,
        name=name,
        dtype=dtype_name(rows[-1].dtype),
        numel=sum(row.numel for row in rows),
        calls=calls,
        low=-_largest(-line[0] for line in numbers),
        high=_largest(line[1] for line in numbers),
        bins=bins,
    )


def _largest(values: Iterable[float]) -> float:
    """Return the maximum, or NaN if any value is NaN, which Python's max may drop."""
    largest = -inf
    for value in values:
        if isnan(value):
            return value
        largest = max(largest, value)
    return largest


def trace(
    model: nn.Module, *, every: int = 1, detail: Detail = "health", keep: int = 1000
) -> Tracer:
    """Trace a model in a ``with`` block. Call ``step()`` on the returned tracer at the end of each step.

    ``every=N`` samples steps 0, N, 2N and so on. ``detail="range"`` adds a histogram of exponents. ``keep``
    is the number of sampled steps that are kept.
    """
    return Tracer(model, every=every, detail=detail, keep=keep)


class Tracer:
    """Statistics of forward outputs, of their gradients, and of the parameters' gradients."""

    def __init__(
        self, model: nn.Module, *, every: int = 1, detail: Detail = "health", keep: int = 1000
    ) -> None:
        if every < 1 or keep < 1:
            raise UsageError(f"trace(every={every}, keep={keep}): both must be at least 1.")
        if detail not in ("health", "range"):
            raise UsageError(f"trace(detail={detail!r}): detail must be 'health' or 'range'.")
        self.model, self.every, self.detail = model, every, detail
        self.step_index = 0
        self._steps: deque[TraceStep] = deque(maxlen=keep)
        self._sensors: _Sensors | None = None

    @property
    def steps(self) -> Sequence[TraceStep]:
        """The sampled steps, oldest first."""
        return tuple(self._steps)

    @property
    def latest(self) -> TraceStep | None:
        """The last sampled step that is complete."""
        return self._steps[-1] if self._steps else None

    def __enter__(self) -> Self:
        self._attach()
        return self

    def __exit__(self, *_: object) -> None:
        self._detach()  # a step that was not ended is dropped

    def step(self) -> TraceStep | None:
        """End a step, and fetch its statistics if it was sampled. Only then does the host wait."""
        sampled = None
        if self._sensors is not None:
            layers = self._sensors.collect()
            sampled = TraceStep.model_construct(step=self.step_index, layers=layers)
            self._steps.append(sampled)
        self.step_index += 1
        self._attach()
        return sampled

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run a block without hooks, between two steps."""
        self._detach()
        try:
            yield
        finally:
            self._attach()

    def _attach(self) -> None:
        if self.step_index % self.every != 0:
            self._detach()
        elif self._sensors is None:
            self._sensors = _Sensors(self.model, self.detail)

    def _detach(self) -> None:
        if self._sensors is not None:
            self._sensors.remove()
            self._sensors = None


class _Sensors:
    """The hooks of sampled steps, and the statistics of the current step."""

    def __init__(self, model: nn.Module, detail: Detail) -> None:
        self.detail = detail
        self.step = 0  # to drop gradients that belong to outputs of an earlier step
        self.rows: list[TensorStatistics] = []
        self.seen: dict[int, tuple[weakref.ref[Tensor], int, TensorStatistics]] = {}
        self.handles: list[Any] = []
        tied: set[int] = set()
        for path, module in visible_modules(model):
            self.handles.append(module.register_forward_hook(self._on_forward(path)))
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad and parameter.is_leaf and id(parameter) not in tied:
                    tied.add(id(parameter))
                    hook = self._on_param_grad((path, "param_grad", name))
                    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                    self.handles.append(handle)

    def remove(self) -> None:
        self.step = -1
        for handle in self.handles:
            handle.remove()

    def collect(self) -> tuple[LayerStats, ...]:
        """Return the statistics of the step, and begin the next one."""
        layers = fetch(self.rows)
        self.step += 1
        self.rows, self.seen = [], {}
        return layers

    def _on_forward(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            # Inside a backward pass this is a recomputed checkpointed block: its outputs were already seen,
            # but their gradients may flow through this second graph.
            recomputed = torch._C._current_graph_task_id() != -1
            for name, tensor in floating_tensors(output):
                if not recomputed:
                    self._add((path, "output", name), tensor)
                if tensor.requires_grad:
                    hook = self._on_grad((path, "grad_output", name))
                    tensor.register_hook(hook)  # type: ignore[no-untyped-call]

        return hook

    def _on_grad(self, key: Key) -> Callable[[Tensor], None]:
        step = self.step

        def hook(grad: Tensor) -> None:
            if step == self.step and grad.numel():
                self._add(key, grad)

        return hook

    def _on_param_grad(self, key: Key) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            grad = parameter.grad
            if grad is not None and grad.numel():
                dense = grad.coalesce().values() if grad.is_sparse else grad
                self._add(key, dense)

        return hook

    def _add(self, key: Key, tensor: Tensor) -> None:
        # A container often returns the tensor of its last child; measure it once.
        reference, version, row = self.seen.get(id(tensor), (None, -1, None))
        same = reference is not None and reference() is tensor and version == tensor._version
        if row is not None and same:
            row = row._replace(key=key)
        else:
            row = measure(key, tensor, self.detail)
            self.seen[id(tensor)] = weakref.ref(tensor), tensor._version, row
        self.rows.append(row)
