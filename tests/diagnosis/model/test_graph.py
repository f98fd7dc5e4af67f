"""The leaves of a loss's graph are the tensors to which a backward pass gives gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from halfguard.diagnosis.model.forward import find_graph_leaves, loss_in
from tests.diagnosis.model.checks.helper import batch, loss, net


def test_leaves_are_what_gets_a_gradient() -> None:
    model = net()
    model[0].requires_grad_(False)
    extra = torch.ones(1, requires_grad=True)
    value = loss(model, batch()) * extra + extra  # reached twice, found once
    found = find_graph_leaves(value)
    value.backward()
    graded = [*(p for p in model.parameters() if p.grad is not None), extra]
    assert found.complete
    assert sorted(map(id, found.tensors)) == sorted(map(id, graded))
    assert len(find_graph_leaves(value).tensors) == 3  # also after the backward pass


def test_a_function_in_python_may_hide_others() -> None:
    model, x = net(), batch().requires_grad_()
    found = find_graph_leaves(checkpoint(model, x, use_reentrant=True).sum())
    assert not found.complete
    assert [leaf is x for leaf in found.tensors] == [True]
    assert find_graph_leaves(checkpoint(model, x, use_reentrant=False).sum()).complete


def test_no_graph_has_no_leaves_and_a_leaf_is_its_own() -> None:
    single = torch.ones((), requires_grad=True)
    assert find_graph_leaves(single).tensors == (single,)
    assert find_graph_leaves(torch.ones(())).tensors == ()
    assert find_graph_leaves(None).tensors == ()


ONE = torch.ones(())


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        (ONE, ONE),
        ((ONE, {"a": 1}), ONE),
        ([ONE], ONE),
        ({"loss": ONE, "a": 1}, ONE),
        ({"a": ONE}, None),
        ((), None),
        ((3, ONE), None),
        (1.0, None),
    ],
)
def test_where_the_loss_is_in_a_result(result: Any, loss: Tensor | None) -> None:
    assert loss_in(result) is loss
