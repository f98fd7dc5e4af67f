"""HD106: the optimizer was made before the model's parameters were replaced.

``model.to(device)`` keeps the parameters on most devices, but sharding, ``load_state_dict(assign=True)``
and XLA put new ones in their place. The optimizer goes on updating the old ones, which have no gradients;
a scaler then says "No inf checks were recorded for this optimizer.", and without one nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.doctor.model.subject import Subject
from halfguard.doctor.model.wording import listed
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find parameters that no optimizer holds, beside held ones that are not the model's."""
    if subject.model is None or not subject.optimizers:
        return
    strangers = [one for one in subject.held if not one.own]
    own = {one.name for one in subject.held}
    trainable = [name for name, p in subject.model.named_parameters() if p.requires_grad]
    left_out = [name for name in trainable if name not in own]
    if not strangers or not left_out:
        return
    kind = type(strangers[0].optimizer).__name__
    yield Finding(
        code="HD106",
        severity="error",
        message=f"{len(strangers)} of the {len(subject.held)} parameters that the optimizer holds are "
        f"not the model's, and it does not hold {listed(left_out)}.",
        subject=left_out[0],
        why="They were replaced after the optimizer had been built, by a move, by sharding or by "
        "load_state_dict(assign=True). The old ones get no gradient: nothing is trained.",
        cure=f"optimizer = torch.optim.{kind}(model.parameters())  # after the model is complete",
    )
