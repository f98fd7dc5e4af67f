"""The 20 optimizers of the matrix: torch's own, and those that people install beside it.

Some take only a part of a model: Muon takes matrices, SparseAdam embeddings with sparse gradients. Then the
rest of the model is frozen, so that a loop has no other optimizer than the one that is tried.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

Parameters = list[nn.Parameter]


class OptimizerCase:
    """An optimizer with the settings that it is tried with."""

    def __init__(
        self,
        name: str,
        module: str = "torch.optim",
        *,
        takes: Literal["all", "matrices", "sparse embeddings"] = "all",
        **settings: Any,
    ) -> None:
        self.name, self.module, self.takes, self.settings = name, module, takes, settings

    @property
    def sparse(self) -> bool:
        """True if embeddings must have sparse gradients."""
        return self.takes == "sparse embeddings"

    @property
    def missing(self) -> str:
        """The reason why this optimizer cannot be tried here, or an empty string."""
        package = self.module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        if package == "torch" and not hasattr(torch.optim, self.name):
            return f"torch {torch.__version__} has no {self.name}"
        return ""

    def make(self, parameters: Parameters) -> Any:
        """Return the optimizer."""
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # about kernels, none of ours
        return getattr(importlib.import_module(self.module), self.name)(parameters, **self.settings)

    def trainable(self, model: nn.Module) -> Parameters:
        """Return the parameters that this optimizer takes; freeze the others."""
        taken = []
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and self._takes(module, parameter):
                    taken.append(parameter)
                else:
                    parameter.requires_grad_(False)
        return taken

    def _takes(self, module: nn.Module, parameter: nn.Parameter) -> bool:
        if self.sparse:
            return isinstance(module, nn.Embedding)
        return parameter.dim() == 2 or self.takes == "all"


class WrapperCase(OptimizerCase):
    """A wrapper of any optimizer, which is itself no ``torch.optim.Optimizer``."""

    def make(self, parameters: Parameters) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(
            torch.optim.SGD(parameters, lr=1e-3), **self.settings
        )


OPTIMIZERS: dict[str, OptimizerCase] = {
    "ASGD": OptimizerCase("ASGD", lr=1e-3, t0=2),
    "Adadelta": OptimizerCase("Adadelta", lr=0.1),
    "Adafactor": OptimizerCase("Adafactor", lr=1e-3),
    "Adagrad": OptimizerCase("Adagrad", lr=1e-3),
    "Adam": OptimizerCase("Adam", lr=1e-3, amsgrad=True),
    "AdamW": OptimizerCase("AdamW", lr=1e-3),
    "AdamW fused": OptimizerCase("AdamW", lr=1e-3, fused=True),
    "Adamax": OptimizerCase("Adamax", lr=1e-3),
    "Muon": OptimizerCase("Muon", lr=1e-3, takes="matrices"),
    "NAdam": OptimizerCase("NAdam", lr=1e-3),
    "RAdam": OptimizerCase("RAdam", lr=1e-3),
    "RMSprop": OptimizerCase("RMSprop", lr=1e-3, centered=True, momentum=0.9),
    "Rprop": OptimizerCase("Rprop", lr=1e-3),
    "SGD": OptimizerCase("SGD", lr=1e-3, momentum=0.9, nesterov=True),
    "SparseAdam": OptimizerCase("SparseAdam", lr=1e-3, takes="sparse embeddings"),
    "schedule-free AdamW": OptimizerCase(
        "AdamWScheduleFree", "schedulefree", lr=1e-3, warmup_steps=3
    ),
    "schedule-free wrapper": WrapperCase("ScheduleFreeWrapper", "schedulefree", momentum=0.9),
    "Lion": OptimizerCase("Lion", "lion_pytorch", lr=1e-4, weight_decay=0.1),
    # 8-bit moments from 512 elements on: those of the matrices here, not those of biases and embeddings.
    "AdamW 8-bit": OptimizerCase("AdamW8bit", "bitsandbytes.optim", lr=1e-3, min_8bit_size=512),
    "transformers Adafactor": OptimizerCase(
        "Adafactor", "transformers", lr=1e-3, beta1=0.9, relative_step=False, scale_parameter=False
    ),
}
NEEDS_CLOSURE = frozenset({"LBFGS"})  # the guard refuses it


def names_in_torch() -> Iterator[str]:
    """Yield the optimizers of the installed torch."""
    for name, member in vars(torch.optim).items():
        is_optimizer = inspect.isclass(member) and issubclass(member, torch.optim.Optimizer)
        if is_optimizer and member is not torch.optim.Optimizer:
            yield name


def set_training(optimizer: Any, *, training: bool) -> None:
    """Switch a schedule-free optimizer between the weights to train and those to evaluate."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if switch is not None:
        switch()
