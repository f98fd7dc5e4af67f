"""HD106: the optimizer was made before the model's parameters were replaced.

``model.to(device)`` keeps the parameters on most devices, but sharding, ``load_state_dict(assign=True)``
and XLA put new ones in their place. The optimizer goes on updating the old ones, which have no gradients;
a scaler then says "No inf checks were recorded for this optimizer.", and without one nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfguard.diagnosis.model.graph import leaves
from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import listed
from halfguard.precision.master_weights import MasterWeights
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find parameters that no optimizer holds, beside held ones that were in their place."""
    if subject.model is None or not subject.optimizers:
        return
    own = {one.name for one in subject.held}
    trainable = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    left_out = {name: p for name, p in trainable.items() if name not in own}
    used = set() if subject.forward is None else set(map(id, leaves(subject.forward.result).found))
    strangers = [one for one in subject.held if not one.own and id(one.weight) not in used]
    free = {place for parameter in left_out.values() for place in _places(parameter)}
    if not any(place in free for one in strangers for place in _places(one.weight)):
        return
    yield Finding(
        code="HD106",
        severity="error",
        message=f"{len(strangers)} of the {len(subject.held)} parameters that the optimizer holds are "
        f"not the model's, and it does not hold {listed(left_out)}.",
        subject=next(iter(left_out)),
        why="They were replaced after the optimizer had been built, by a move, by sharding or by "
        "load_state_dict(assign=True). The old ones get no gradient: nothing is trained.",
        cure=f"optimizer = {_built(strangers[0].optimizer)}  # after the model is complete",
    )


def _places(parameter: Tensor) -> Iterator[tuple[int | None, ...]]:
    """Where it may have stood: for its very shape, or in a layer with any number of outputs."""
    yield tuple(parameter.shape)
    if parameter.dim() > 1:
        yield None, *parameter.shape[1:]


def _built(optimizer: Optimizer | None) -> str:
    if isinstance(optimizer, MasterWeights):
        return f"halfguard.MasterWeights({_built(optimizer.inner)})"
    kind = type(optimizer)
    torchs = getattr(torch.optim, kind.__name__, None) is kind
    return f"{'torch.optim.' if torchs else ''}{kind.__name__}(model.parameters())"
