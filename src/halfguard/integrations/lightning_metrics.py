"""Values that a Lightning module logs in a step: those of a repeat replace those of the overflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor


class StepMetrics:
    """The values logged since the last optimizer step."""

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        # Lightning replaces these tensors and never writes into them, so that references are enough.
        self._before: dict[str, tuple[Any, Any]] | None = None
        self._again: dict[str, list[Any]] = {}
        self._micro_batches = 0

    def begin(self) -> None:
        """Begin a micro-batch; note what was logged before the first one of a step."""
        self._micro_batches += 1
        if self._before is None:
            self._before = {key: _state_of(metric) for key, metric in self._results().items()}

    @contextmanager
    def repeating(self, *, applied: bool) -> Iterator[None]:
        """Log nothing a second time; keep the values of a repeat that may be applied."""

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            if applied:
                self._again.setdefault(name, []).append(value)

        def log_dict(dictionary: Mapping[str, Any], *_: Any, **__: Any) -> None:
            for name, value in dictionary.items():
                log(name, value)

        known = vars(self._module)
        own: dict[str, Any] = {n: known[n] for n in ("log", "log_dict") if n in known}
        known.update(log=log, log_dict=log_dict)
        try:
            yield
        finally:
            del self._module.log, self._module.log_dict
            known.update(own)

    def end(self, *, repeated: bool) -> None:
        """End the step; if its repeat was applied, let Lightning count the values of the repeat."""
        before, again, last = self._before or {}, self._again, self._micro_batches
        self._before, self._again, self._micro_batches = None, {}, 0
        for key, metric in self._results().items() if repeated else ():
            # The step may have been run in half before, to see whether its overflow comes again.
            values = again.get(metric.meta.name, [])[-last:]
            if metric.meta.fx == "training_step" and metric.is_tensor and values:
                _replace(metric, before.get(key), [torch.as_tensor(one).detach() for one in values])

    def _results(self) -> Mapping[str, Any]:
        return getattr(self._module.trainer, "_results", None) or {}


def _state_of(metric: Any) -> tuple[Any, Any]:
    return metric.value, getattr(metric, "cumulated_batch_size", None)


def _replace(metric: Any, before: tuple[Any, Any] | None, values: list[Tensor]) -> None:
    size = 1
    value, count = before or (metric._defaults["value"].to(metric.value.device), 0)
    if metric.meta.is_mean_reduction and metric.meta.on_epoch:
        size = (metric.cumulated_batch_size - count) / len(values)
        metric.cumulated_batch_size = torch.as_tensor(count, device=metric.value.device)
    metric.value = value
    for new in values:
        metric.update(new.to(metric.value.device), size)
