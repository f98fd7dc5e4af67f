"""A workload holds its weights as a precision wants them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halfguard import MasterWeights, Workload
from halfguard.precision_names import Precision

pytestmark = pytest.mark.usefixtures("device")


def job() -> Workload:
    model = nn.Linear(3, 1)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).float().square().mean()  # type: ignore[no-any-return]

    return Workload(model, loss, [torch.ones(2, 3)], torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.on_standin
def test_fp16_weights_get_masters_and_stay_the_very_parameters(seed: object) -> None:
    workload = job()
    weight = next(workload.model.parameters())
    exact = weight.detach().clone()
    workload.store_weights_as(Precision.FP16_WEIGHTS)
    assert next(workload.model.parameters()) is weight
    assert weight.dtype == torch.float16
    assert isinstance(workload.optimizer, MasterWeights)
    masters = workload.optimizer.param_groups[0]["params"]
    assert [master.dtype for master in masters] == [torch.float32] * 2
    torch.testing.assert_close(masters[0].detach(), exact, rtol=2**-11, atol=2**-24)


def test_other_precisions_leave_it_as_it_is(seed: object) -> None:
    for precision in (Precision.FP32, Precision.FP16_MIXED, Precision.BF16_MIXED):
        workload = job()
        optimizer = workload.optimizer
        workload.store_weights_as(precision)
        assert workload.optimizer is optimizer
        assert {p.dtype for p in workload.model.parameters()} == {torch.float32}
