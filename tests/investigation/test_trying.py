"""Half numbers of a script are FP32 after ``force_fp32``, also where a backward pass runs its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halfguard.investigation.bus import HookBus
from halfguard.investigation.trying import force_fp32
from tests.support.forks import FORKED

pytestmark = pytest.mark.slow

Computed = Callable[[Tensor], Tensor]
Start = Callable[[Tensor, Tensor], None]
SEEN: list[torch.dtype] = []


class Halved(torch.autograd.Function):
    """Computes in half, in both directions."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return see(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return see(grads[0])


def see(x: Tensor) -> Tensor:
    half = x.half()
    SEEN.extend([half.dtype, x.to(torch.float16).dtype])
    return half.float()


def by_function(x: Tensor) -> Tensor:
    return Halved.apply(x)


def by_hook(x: Tensor) -> Tensor:
    out = x * 2
    out.register_hook(see)
    return out


def by_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda y: see(y).exp(), x, use_reentrant=False)


def by_reentrant_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda y: see(y).exp(), x, use_reentrant=True)


def method(loss: Tensor, _x: Tensor) -> None:
    loss.backward()


def function(loss: Tensor, _x: Tensor) -> None:
    torch.autograd.backward([loss])


def grad(loss: Tensor, x: Tensor) -> None:
    torch.autograd.grad(loss, [x])


CASES: list[tuple[Computed, Start]] = [
    (computed, start)
    for computed in (by_function, by_hook, by_checkpoint, by_reentrant_checkpoint)
    for start in (method, function, grad)
    if (computed, start) != (by_reentrant_checkpoint, grad)  # torch refuses it
]


@pytest.mark.parametrize(("computed", "start"), CASES)
def test_code_in_a_backward_pass_is_lifted(computed: Computed, start: Start) -> None:
    process = FORKED.Process(target=_check, args=(computed, start))  # forced for all its life
    process.start()
    process.join()
    assert process.exitcode == 0


def _check(computed: Computed, start: Start) -> None:
    x = torch.ones(3, requires_grad=True)
    bus = HookBus()
    bus.install()
    force_fp32(bus, bus.changes)
    loss = computed(x).sum()
    forward = len(SEEN)
    start(loss, x)
    assert len(SEEN) > forward
    assert set(SEEN) == {torch.float32}


def test_half_weights_beside_fp32_copies_are_lifted_too() -> None:
    process = FORKED.Process(target=_check_copies)
    process.start()
    process.join()
    assert process.exitcode == 0


def _check_copies() -> None:
    bus, model = HookBus(), nn.Linear(2, 1).half()
    bus.install()
    torch.optim.SGD([p.detach().float().requires_grad_() for p in model.parameters()], lr=0.1)
    force_fp32(bus, bus.changes)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.dtype == torch.float32
