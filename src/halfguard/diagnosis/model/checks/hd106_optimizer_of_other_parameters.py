"""HD106: the model's parameters were replaced after the optimizer was built.

``model.to(device)`` keeps the parameters on most devices, but sharding, ``load_state_dict(assign=True)``
and XLA replace them. The optimizer keeps updating the old ones, which have no gradients. A scaler then
raises "No inf checks were recorded for this optimizer."; without a scaler there is no error.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfguard.diagnosis.model.graph import find_graph_leaves
from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.precision.master_weights import MasterWeights
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find model parameters without an optimizer, and optimizer parameters that fit in their place."""
    if setup.model is None or not setup.optimizers:
        return
    yield from _note_copies(setup)
    in_optimizer = {one.name for one in setup.parameters}
    trainable = {name: p for name, p in setup.model.named_parameters() if p.requires_grad}
    left_out = {name: p for name, p in trainable.items() if name not in in_optimizer}
    leaves = () if setup.forward is None else find_graph_leaves(setup.forward.result).tensors
    in_graph = set(map(id, leaves))
    outside = [p for p in setup.parameters if not p.in_model and id(p.weight) not in in_graph]
    free_shapes = {shape for p in left_out.values() for shape in _possible_shapes(p)}
    if not any(shape in free_shapes for p in outside for shape in _possible_shapes(p.weight)):
        return
    yield Finding(
        code="HD106",
        severity="error",
        message=f"{len(outside)} of the {len(setup.parameters)} parameters in the optimizer are not the "
        f"model's, and it does not contain {join_names(left_out)}.",
        subject=next(iter(left_out)),
        why="The model's parameters were replaced after the optimizer was built: by a move, by sharding or "
        "by load_state_dict(assign=True). The old ones get no gradient: nothing is trained.",
        cure=f"optimizer = {_constructor_call(outside[0].optimizer)}  # after the model is complete",
    )


def _note_copies(setup: TrainingSetup) -> Iterator[Finding]:
    """Tell of FP32 copies that a loop must fill and read itself; MasterWeights does it alone."""
    copies = [
        one
        for one in setup.parameters
        if one.master_of is not None and not isinstance(one.optimizer, MasterWeights)
    ]
    if copies:
        yield Finding(
            code="HD106",
            severity="note",
            message=f"the optimizer has FP32 copies of {len(copies)} half weights: "
            f"{join_names(one.name for one in copies)}.",
            subject=copies[0].name,
            why="The loop must copy gradients to them, and new values back: otherwise nothing is trained.",
            cure="optimizer = halfguard.MasterWeights(optimizer)  # does both",
        )


def _possible_shapes(parameter: Tensor) -> Iterator[tuple[int | None, ...]]:
    """Yield the shapes that it may replace: its own, and that of a layer with other outputs."""
    yield tuple(parameter.shape)
    if parameter.dim() > 1:
        yield None, *parameter.shape[1:]


def _constructor_call(optimizer: Optimizer | None) -> str:
    if isinstance(optimizer, MasterWeights):
        return f"halfguard.MasterWeights({_constructor_call(optimizer.inner)})"
    kind = type(optimizer)
    from_torch = getattr(torch.optim, kind.__name__, None) is kind
    return f"{'torch.optim.' if from_torch else ''}{kind.__name__}(model.parameters())"
