"""HD107: the loss leads back to no parameter, so that none gets a gradient."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from halfguard.diagnosis.model.forward import Forward
from halfguard.diagnosis.model.graph import leaves, loss_in
from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Look at what the forward pass returned, where it is a loss and something is trained."""
    if subject.forward is None or not subject.trains or not subject.held:
        return
    loss = loss_in(subject.forward.result)
    if loss is None or loss.numel() != 1 or not _leads_nowhere(subject, loss):
        return
    if any(one.tensor.requires_grad for one in subject.held):
        cause, cure = _explained(subject.forward)
        yield Finding(
            code="HD107",
            severity="error",
            message="the loss does not depend on any parameter: its graph leads to none.",
            subject="loss",
            why=f"{cause} backward() raises, or, if the loss was given requires_grad, the scaler says "
            '"No inf checks were recorded".',
            cure=cure,
        )
    else:
        yield Finding(
            code="HD107",
            severity="error",
            message=f"nothing is trained: all {len(subject.held)} parameters that the optimizer holds "
            "are frozen.",
            subject="optimizer",
            why="Their requires_grad is False, so that the loss has no graph and backward() raises.",
            cure="model.requires_grad_(True)  # or the part of it that is to be trained",
        )


def _explained(forward: Forward) -> tuple[str, str]:
    """The cause and its cure: the graph was lost at the loss, or none was made in the forward pass."""
    if any(product.trains for product in forward.products):
        cause = "It was rebuilt from a number or detached."
        return (
            cause,
            "return loss  # the tensor itself, without .item(), .detach() or torch.tensor(loss)",
        )
    cause = (
        "The forward pass made no graph: it ran under torch.no_grad(), or in a reentrant checkpoint of "
        "whose inputs none needs a gradient; or the loss was rebuilt from a number or detached."
    )
    cure = (
        "checkpoint(..., use_reentrant=False)  # without a checkpoint: no torch.no_grad() around the "
        "forward pass, and the loss itself, without .item() or .detach()"
    )
    return cause, cure


def _leads_nowhere(subject: Subject, loss: Tensor) -> bool:
    """Whether a backward pass from the loss reaches no parameter, as far as its graph can be followed."""
    reached = leaves(loss)
    held = {id(one.weight) for one in subject.held}
    found = any(isinstance(leaf, nn.Parameter) or id(leaf) in held for leaf in reached.found)
    return reached.whole and not found
