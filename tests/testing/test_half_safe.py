"""`assert_half_safe` fails where 16 bits make a step wrong, and names the line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.testing import assert_half_safe
from tests.support.cases import each
from tests.support.models import MODELS, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("seed")


def workload(loss: Any = loss_fn, name: str = "transformer") -> hg.Workload:
    model = make(name)
    return hg.Workload(model, loss, batches(8), torch.optim.AdamW(model.parameters(), lr=1e-3))


@each("precision", ["fp16-mixed", "bf16-mixed", "fp16-weights"])
@each("name", MODELS)
def test_healthy_models_pass(name: str, precision: Any) -> None:
    assert_half_safe(workload(name=name), steps=4, precision=precision)


def test_the_workload_is_not_changed() -> None:
    job = workload()
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert_half_safe(job, steps=2)
    assert differences(before, job.model.state_dict()) == []
    assert torch.equal(drawn, torch.get_rng_state())


def test_an_overflow_that_no_scale_cures_is_named() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        wide: Tensor = model(batch[0]).half() * 60000 * 60000
        return wide.float().mean()

    with pytest.raises(AssertionError, match="at any loss scale") as caught:
        assert_half_safe(workload(loss), steps=3)
    assert "* 60000 * 60000" in str(caught.value)
    assert "Step 1 of 3" in str(caught.value)


def test_an_overflow_that_turns_into_a_zero_is_named() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        wide: Tensor = model(batch[0]).half() * 3000
        inverse = 1 / (wide * wide).sum(1)  # 1 / inf is 0: finite, and wrong
        return loss_fn(model, batch) + inverse.float().mean() * 1e8

    with pytest.raises(AssertionError, match="finite in fp16-mixed, but wrong") as caught:
        assert_half_safe(workload(loss), steps=2)
    assert "wide * wide" in str(caught.value)


def test_an_overflow_that_a_lower_scale_cures_passes() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return loss_fn(model, batch) * 64

    assert_half_safe(workload(loss), steps=4)


def test_a_scale_that_keeps_falling_fails() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return loss_fn(model, batch) * 1e4

    with pytest.raises(AssertionError, match="the loss scale fell to 64"):
        assert_half_safe(workload(loss, "mlp-batchnorm"), steps=40)


def test_no_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one step"):
        assert_half_safe(workload(), steps=0)


def test_sparse_gradients_are_looked_at() -> None:
    model = torch.nn.Embedding(8, 4, sparse=True)

    def loss(model: Any, batch: Any) -> Tensor:
        return model(batch).square().mean()

    optimizer = torch.optim.SparseAdam(model.parameters())
    assert_half_safe(hg.Workload(model, loss, [torch.arange(4)], optimizer), steps=2)
