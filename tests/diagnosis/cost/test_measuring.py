"""Time and memory of a step in each precision, measured on jobs that are run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from halfguard import Workload
from halfguard.diagnosis.cost import measure_cost
from halfguard.diagnosis.cost.gain import MIN_IMPROVEMENT
from halfguard.records.cost import Cost
from halfguard.records.sizes import format_bytes
from tests.diagnosis.cost.jobs import HALF, Net, codes, job, loss

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]


class TestNoGainInMemory:
    """Failure 33: weights, gradients and optimizer state stay FP32."""

    def test_a_model_that_is_all_weights_is_found(self) -> None:
        cost = measure_cost(job(rows=2, width=64), HALF, rounds=3)
        found = next(found for found in cost.findings if found.code == "HD202")
        assert found.subject == "fp16-mixed"
        base, half = cost.costs
        count = sum(p.numel() for p in Net(64).parameters())
        assert half.memory.largest.weights == half.memory.largest.gradients == 4 * count
        assert half.memory.largest.optimizer == pytest.approx(8 * count, rel=0.001)
        assert half.memory.largest.activations < base.memory.largest.activations
        single, double = format_bytes(4 * count), format_bytes(half.memory.largest.optimizer)
        for part in (f"Weights ({single})", f"gradients ({single})", f"optimizer state ({double})"):
            assert part in found.why
        assert "larger batch" in found.cure
        assert "8-bit" in found.cure

    def test_half_weights_are_told_what_their_masters_need(self) -> None:
        cost = measure_cost(job(rows=2, width=64), ("fp32", "fp16-weights"), rounds=3)
        found = next(found for found in cost.findings if found.code == "HD202")
        assert found.subject == "fp16-weights"
        assert "stay FP32" not in found.why
        count = sum(p.numel() for p in Net(64).parameters())
        base, half = (one.memory.largest for one in cost.costs)
        assert half.weights == half.gradients == 2 * count
        assert half.optimizer == base.optimizer + 4 * count
        single, less = format_bytes(4 * count), format_bytes(2 * count)
        for part in (
            f"Weights ({single} to {less})",
            f"gradients ({single} to {less})",
            f"from {format_bytes(base.optimizer)} to {format_bytes(half.optimizer)}",
            f"their gradients take {single} in its step",
        ):
            assert part in found.why
        assert "masters" in found.cure

    @pytest.mark.slow
    def test_the_same_model_with_a_large_batch_is_clean(self) -> None:
        cost = measure_cost(job(rows=1024, width=64), HALF, rounds=3)
        assert "HD202" not in codes(cost)
        base, half = cost.costs
        assert half.memory.peak < 0.75 * base.memory.peak


class TestTime:
    def test_a_tiny_model_on_this_machine(self) -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        cost = measure_cost(Workload(model, loss, [torch.randn(8, 16)], optimizer), HALF, rounds=15)
        half = cost.costs[1]
        assert half.seconds is not None
        assert half.ratio is not None
        assert half.matmul_ratio is not None
        found = [found for found in cost.findings if found.code == "HD201"]
        assert bool(found) == (
            half.ratio.median > 1 / (1 + MIN_IMPROVEMENT)
        )  # a busy machine may err
        assert all("Only matrix products get faster in half" in one.why for one in found)

    @pytest.mark.on_standin
    @pytest.mark.slow
    def test_the_table_has_what_was_asked_for(self) -> None:
        called: list[int] = []
        precisions = ("fp32", "fp16-mixed", "bf16-mixed", "fp16-weights")
        workload = job(rows=16, width=32)
        before = copy.deepcopy(workload.model.state_dict())
        cost = measure_cost(workload, precisions, rounds=3, advance=lambda: called.append(1))
        assert [one.precision for one in cost.costs] == list(precisions)
        assert all(one.seconds and one.ratio and not one.failure for one in cost.costs)
        assert cost.costs[3].memory.largest.weights * 2 == cost.costs[0].memory.largest.weights
        assert len(called) == 4 * (3 + 2)
        after = workload.model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert Cost.from_json(cost.to_json()) == cost
