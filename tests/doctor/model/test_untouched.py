"""A model that was looked at is as it was: also after errors, conversions and backward passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.doctor.model.untouched import kept
from tests.doctor.model.checks.helper import batch, loss, net


class Untidy(nn.Module):
    """Changes all that a forward pass may change, and then raises if it is told to."""

    count: Tensor
    cache: Tensor | None

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.inner, self.raises = net(batchnorm=True), raises
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.cache = torch.rand(4)
        self.register_buffer("late", torch.ones(1))
        random.random()
        output: Tensor = self.inner(x)
        self.eval()
        if self.raises:
            raise ValueError("untidy")
        return output


def backward_in_the_loss(model: nn.Module, x: Tensor) -> Tensor:
    value = loss(model, x)
    value.backward()
    return value


def state(model: nn.Module) -> dict[str, Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "tensors": [
            (name, t.clone()) for name, t in (*model.named_parameters(), *model.named_buffers())
        ],
        "gradients": [
            (id(p.grad), p.grad.clone()) for p in model.parameters() if p.grad is not None
        ],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, name)) for module in model.modules() for name in hooks],
        "generators": (torch.get_rng_state(), random.getstate()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "grad": torch.is_grad_enabled(),
    }


def same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, after) and before.dtype is after.dtype
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


@pytest.mark.parametrize("raises", [False, True], ids=["passes", "raises"])
@pytest.mark.parametrize("function", [loss, backward_in_the_loss])
@pytest.mark.parametrize("graded", [False, True], ids=["no gradients", "gradients"])
@pytest.mark.usefixtures("seed")
def test_everything_is_as_before(
    raises: bool, function: Callable[[nn.Module, Tensor], Tensor], graded: bool
) -> None:
    model = Untidy(raises)
    for parameter in model.parameters() if graded else ():
        parameter.grad = torch.full_like(parameter, 3.0)
    with torch.autocast("cpu", torch.bfloat16):
        before = state(model)
        diagnosis = hg.doctor(model, loss=function, batch=batch())
        after = state(model)
    assert [found.code for found in diagnosis.findings] == ["HD100"] * raises
    for name, value in before.items():
        assert same(value, after[name]), name
    assert model.cache is None


@pytest.mark.usefixtures("seed")
def test_an_interrupt_leaves_nothing_behind_either() -> None:
    def interrupted(model: nn.Module, x: Tensor) -> Tensor:
        loss(model, x)
        model.eval()
        raise KeyboardInterrupt

    model = Untidy(raises=False)
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        hg.doctor(model, loss=interrupted, batch=batch())
    assert all(same(value, state(model)[name]) for name, value in before.items())


def test_buffers_that_nobody_can_write_to_are_no_obstacle() -> None:
    model = net(batchnorm=True)
    model.register_buffer("expanded", torch.zeros(1).expand(4))
    with torch.inference_mode():
        model.register_buffer("inferred", torch.ones(2))
    before = state(model)
    assert hg.doctor(model, batch=batch()).ok
    assert all(same(value, state(model)[name]) for name, value in before.items())


def test_a_conversion_is_taken_back_with_gradients_and_identities() -> None:
    model = net(batchnorm=True)
    loss(model, batch()).backward()
    tensors = [*model.parameters(), *model.buffers()]
    before = state(model)
    with kept(model):
        model.half()
        assert all(p.dtype is torch.float16 for p in model.parameters())
    assert all(
        a is b for a, b in zip(tensors, [*model.parameters(), *model.buffers()], strict=True)
    )
    assert all(same(value, state(model)[name]) for name, value in before.items())
