"""Tensors that the optimizer, the loss or the model does not know of, so that they are not trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.diagnosis.model.forward import ObservedForward, find_graph_leaves, loss_in
from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.precision.master_weights import MasterWeights
from halfguard.records.finding import Finding

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})


def check_hd106(setup: TrainingSetup) -> Iterator[Finding]:
    """Find model parameters without an optimizer, and optimizer parameters that fit in their place.

    ``model.to(device)`` keeps the parameters on most devices, but sharding, ``load_state_dict(assign=True)``
    and XLA replace them. The optimizer keeps updating the old ones, which have no gradients. A scaler then
    raises "No inf checks were recorded for this optimizer."; without a scaler there is no error.
    """
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
        message=(
            f"{len(outside)} of the {len(setup.parameters)} parameters in the optimizer do not belong to "
            f"the model, and the optimizer does not contain {join_names(left_out)}."
        ),
        subject=next(iter(left_out)),
        why=(
            "The model's parameters were replaced after the optimizer was created: by a move, by sharding "
            "or by load_state_dict(assign=True). The old parameters receive no gradients, so nothing is "
            "trained."
        ),
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
            message=(
                f"the optimizer has FP32 copies of {len(copies)} 16-bit weights: "
                f"{join_names(one.name for one in copies)}."
            ),
            subject=copies[0].name,
            why=(
                "The training loop must move gradients to these copies and copy the new values "
                "back. Otherwise nothing is trained."
            ),
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


def check_hd107(setup: TrainingSetup) -> Iterator[Finding]:
    """Find a loss whose graph reaches no parameter, if the setup has something to train."""
    if setup.forward is None or not setup.for_training or not setup.parameters:
        return
    loss = loss_in(setup.forward.result)
    if loss is None or loss.numel() != 1 or not _reaches_no_parameter(setup, loss):
        return
    if any(one.tensor.requires_grad for one in setup.parameters):
        cause, cure = _explain(setup.forward)
        yield Finding(
            code="HD107",
            severity="error",
            message="the loss does not depend on any parameter.",
            subject="loss",
            why=(
                f"{cause} backward() raises an error. If requires_grad was set on the loss, the "
                'scaler raises "No inf checks were recorded" instead.'
            ),
            cure=cure,
        )
    else:
        yield Finding(
            code="HD107",
            severity="error",
            message=f"nothing is trained: all {len(setup.parameters)} parameters in the optimizer are "
            "frozen.",
            subject="optimizer",
            why=(
                "All of them have requires_grad=False, so the loss has no graph and backward() "
                "raises an error."
            ),
            cure="model.requires_grad_(True)  # or only the part to be trained",
        )


def _explain(forward: ObservedForward) -> tuple[str, str]:
    """Return cause and cure: the loss lost the graph, or the forward pass made none."""
    if any(product.passes_gradient for product in forward.products):
        cause = "The loss was rebuilt from a number or detached."
        return cause, "return loss  # the tensor, without .item(), .detach() or torch.tensor(loss)"
    cause = (
        "The forward pass recorded no graph: it ran under torch.no_grad() or in a reentrant checkpoint "
        "whose inputs do not require gradients, or the loss was rebuilt from a number or detached."
    )
    cure = (
        "checkpoint(..., use_reentrant=False)  # without a checkpoint: remove torch.no_grad() around the "
        "forward pass, and return the loss without .item() or .detach()"
    )
    return cause, cure


def _reaches_no_parameter(setup: TrainingSetup, loss: Tensor) -> bool:
    """Return whether the graph of the loss reaches no parameter; False if a part of it is hidden."""
    leaves = find_graph_leaves(loss)
    weights = {id(one.weight) for one in setup.parameters}
    found = any(isinstance(leaf, nn.Parameter) or id(leaf) in weights for leaf in leaves.tensors)
    return leaves.complete and not found


def check_hg404(setup: TrainingSetup) -> Iterator[Finding]:
    """Find trainable tensors of modules that are not parameters of the model.

    ``self.w = torch.rand(n, requires_grad=True)`` gets gradients, but ``model.parameters()`` does not contain
    it. So ``model.to(device)`` and casts leave it where it is, checkpoints do not save it, and an optimizer
    that was given ``model.parameters()`` does not train it. The same holds for tensors in a plain list or
    dict.
    """
    if setup.model is None:
        return
    known = set(map(id, setup.model.parameters()))
    found = {
        place: value
        for place, value in _attributes(setup.model)
        if any(t.requires_grad and t.is_leaf and id(t) not in known for t in _tensors(value))
    }
    if not found:
        return
    trained = {id(p.weight) for p in setup.parameters}
    all_trained = all(id(t) in trained for value in found.values() for t in _tensors(value))
    place, value = next(iter(found.items()))
    yield Finding(
        code="HG404",
        severity="warning" if all_trained or not setup.optimizers else "error",
        message=f"trainable, but not a parameter of the model: {join_names(found)}.",
        subject=place,
        why=(
            "model.parameters() does not contain it, so model.to() and casts do not affect it, and "
            f"checkpoints do not save it.{'' if all_trained else ' No optimizer trains it.'}"
        ),
        cure=_cure(place, value),
    )


def _attributes(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what modules hold beside parameters, buffers and modules, with its place in the model."""
    for prefix, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in _REGISTERED:
                yield f"{prefix}.{name}".lstrip("."), value


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Mapping):
        value = list(value.values())
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, Tensor)]


def _cure(place: str, value: object) -> str:
    owner, _, name = place.rpartition(".")
    module = f"model.get_submodule({owner!r})" if owner else "model"
    kind = {Mapping: "ParameterDict", list | tuple: "ParameterList"}
    made = next((made for type_, made in kind.items() if isinstance(value, type_)), "Parameter")
    held = f"module.{name}" + (".detach()" if made == "Parameter" else "")
    return f"module = {module}\nmodule.{name} = torch.nn.{made}({held})  # then build the optimizer"
