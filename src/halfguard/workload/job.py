"""``Workload``: the five things that describe a training job to every instrument.

The instruments run a job many times: in FP32, in 16 bits, with different islands. So a workload must be
repeatable. ``fresh()`` returns another one in the same state: it calls the user's function again or, for a
workload made without an ENTRY, makes a deep copy. ``take(n)`` iterates its batches from the start.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision_names import Precision
from halfguard.step.loss import LossFunction, scalar_loss

Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass
class Workload:
    """A training job: ``loss(model, batch)`` for each of ``batches``, then ``optimizer``.

    ``loss`` returns a tensor, or a mapping with a ``"loss"``. ``batches`` is a list, a DataLoader, or a
    function that returns an iterable; it is started again when it ends. ``evaluate(model)`` returns metrics.
    ``clip_norm`` clips the gradients to this total norm, after unscaling, in every run of the job.
    """

    model: nn.Module
    loss: LossFunction
    batches: Batches
    optimizer: Optimizer
    evaluate: Callable[[nn.Module], Any] | None = None
    clip_norm: float | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    remake: Callable[[], Workload] | None = field(default=None, kw_only=True, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def fresh(self) -> Workload:
        """Return another workload in the initial state of this one; only the data is shared."""
        if self.remake is not None:
            return self.remake()
        try:
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
        except Exception as error:
            raise UsageError(
                f"The workload's model and optimizer cannot be copied to run them again: {error}",
                cure="Describe the job as a function of a seed that returns a Workload, and load it "
                "with halfguard.workload.load('file.py:function', seed=0).",
            ) from error
        return replace(self, model=model, optimizer=optimizer)

    def store_weights_as(self, precision: Precision) -> None:
        """Store the weights as ``precision`` needs them: FP16 weights get FP32 masters in the optimizer."""
        if precision.needs_master_weights:
            self.model.half()  # in place: the optimizer keeps the same parameters
            self.optimizer = MasterWeights(self.optimizer)

    def take(self, count: int) -> Iterator[Any]:
        """Yield ``count`` batches; after the last one they start again from the first."""
        taken = 0
        while taken < count:
            batches, before = self._start(), taken
            for batch in batches:
                yield batch
                taken += 1
                if taken == count:
                    return
            if taken == before or (iter(batches) is batches and not callable(self.batches)):
                raise UsageError(
                    f"The batches ended after {taken} of {count}, and cannot be started again.",
                    cure="Pass a list, a DataLoader, or a function that returns a new iterator.",
                )

    def _start(self) -> Iterable[Any]:
        batches: Any = self.batches() if callable(self.batches) else self.batches
        if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
            raise UsageError(
                f"The workload's batches are a {type(batches).__name__}, which cannot be iterated.",
                cure="Pass a list, a DataLoader, or a function that returns an iterable.",
            )
        return batches  # type: ignore[no-any-return]

    def loss_of(self, batch: Any) -> Tensor:
        """Return the loss of one batch as a scalar tensor."""
        return scalar_loss(self.loss(self.model, batch))
