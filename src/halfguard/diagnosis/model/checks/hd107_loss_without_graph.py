"""HD107: the graph of the loss reaches no parameter, so none gets a gradient."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from halfguard.diagnosis.model.forward import ObservedForward
from halfguard.diagnosis.model.graph import find_graph_leaves, loss_in
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
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
            message="the loss does not depend on any parameter: its graph reaches none.",
            subject="loss",
            why=f"{cause} backward() raises; or, if requires_grad was set on the loss, the scaler raises "
            '"No inf checks were recorded".',
            cure=cure,
        )
    else:
        yield Finding(
            code="HD107",
            severity="error",
            message=f"nothing is trained: all {len(setup.parameters)} parameters in the optimizer are "
            "frozen.",
            subject="optimizer",
            why="Their requires_grad is False, so the loss has no graph and backward() raises.",
            cure="model.requires_grad_(True)  # or only the part to be trained",
        )


def _explain(forward: ObservedForward) -> tuple[str, str]:
    """Return cause and cure: the loss lost the graph, or the forward pass made none."""
    if any(product.passes_gradient for product in forward.products):
        cause = "It was rebuilt from a number or detached."
        return cause, "return loss  # the tensor, without .item(), .detach() or torch.tensor(loss)"
    cause = (
        "The forward pass made no graph: it ran under torch.no_grad(), or in a reentrant checkpoint "
        "whose inputs need no gradient; or the loss was rebuilt from a number or detached."
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
