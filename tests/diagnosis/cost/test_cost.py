"""Time and memory of a step in each precision, measured on jobs that are run; steps that do not fit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from halfguard import Workload
from halfguard.diagnosis.cost import measure_cost
from halfguard.diagnosis.cost.gain import MIN_IMPROVEMENT
from halfguard.errors import UsageError
from halfguard.records.cost import Cost
from halfguard.records.sizes import format_bytes
from halfguard.workload.user_error import is_out_of_memory
from tests.diagnosis.cost.jobs import HALF, Net, codes, job, loss
from tests.support.devices import device_type

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device", "seed")]


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
            f"their gradients need {single} during its step",
        ):
            assert part in found.why
        assert "master weights" in found.cure

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
        assert all(
            "Only matrix products are faster in 16-bit precision" in one.why for one in found
        )

    @pytest.mark.on_standin
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


class TestFits:
    def test_a_budget_that_holds_and_one_that_does_not(self) -> None:
        workload = job(rows=512, width=64)
        roomy = measure_cost(workload, HALF, rounds=1, budget="2GB")
        (note,) = (found for found in roomy.findings if found.code == "HD205")
        assert note.severity == "note"
        assert "fp32 and fp16-mixed fit into 2 GB" in note.message

        between = sum(one.memory.peak for one in roomy.costs) // 2
        (half_fits,) = (
            found
            for found in measure_cost(workload, HALF, rounds=1, budget=between).findings
            if found.code == "HD205"
        )
        assert half_fits.severity == "note"
        assert half_fits.message.startswith("fp16-mixed fits into")

        tight = measure_cost(workload, HALF, rounds=1, budget="1kB")
        (error,) = (found for found in tight.findings if found.code == "HD205")
        assert error.severity == "error"
        assert error.message.startswith("A step does not fit into 1 kB; needed: fp32 ")
        assert error.cure.startswith("Halve the micro-batch"), "activations are most of it"
        assert error in tight.problems
        weights = measure_cost(job(rows=2, width=64), HALF, rounds=1, budget="1kB")
        (error,) = (found for found in weights.findings if found.code == "HD205")
        assert error.cure.startswith("Use an optimizer with 8-bit state"), "its state is"

    def test_a_budget_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="'2 parsecs' is not an amount"):
            measure_cost(job(rows=2, width=8), HALF, rounds=1, budget="2 parsecs")

    def test_a_step_that_runs_out_of_memory_is_answered_with_advice(self) -> None:
        def full(model: nn.Module, batch: Tensor) -> Tensor:
            model(batch)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        cost = measure_cost(job(rows=1024, width=64, loss=full), rounds=2)
        (found,) = cost.problems
        assert found.code == "HD204"
        assert found.severity == "error"
        assert found.subject == "fp32, fp16-mixed and bf16-mixed"
        assert "Tried to allocate 2.00 GiB" in found.message
        assert all(word in found.cure for word in ("micro-batch", "heckpoint", "8-bit", "LoRA"))
        assert cost.baseline is None
        parts = cost.costs[0].memory.largest
        assert f"weights {format_bytes(parts.weights)}" in found.why
        assert parts.activations >= 4 * 1024 * 64 * 4 * 4, "what the forward pass came to"

    def test_a_precision_that_fits_is_the_first_advice_for_one_that_does_not(self) -> None:
        def full(model: nn.Module, batch: Tensor) -> Tensor:
            if torch.is_autocast_enabled(device_type()):
                return loss(model, batch)
            raise torch.OutOfMemoryError("CUDA out of memory.")

        cost = measure_cost(job(rows=64, width=64, loss=full), HALF, rounds=1)
        peak = format_bytes(cost.costs[1].memory.peak)
        (found,) = (found for found in cost.findings if found.code == "HD204")
        assert found.cure.startswith(f"Train in fp16-mixed: a step fits there, with {peak}.")

    def test_a_half_model_is_told_and_not_a_mistake_in_the_call(self) -> None:
        model = nn.Linear(8, 8).half()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        half = Workload(model, lambda m, x: loss(m, x.half()), [torch.randn(4, 8)], optimizer)
        cost = measure_cost(half, HALF, rounds=1)
        assert [one.failure != "" for one in cost.costs] == [False, True]
        assert "MasterWeights" in cost.findings[0].message

    @pytest.mark.on_standin
    def test_a_device_that_has_no_room_is_recognised(self) -> None:
        def huge(model: nn.Module, batch: Tensor) -> Tensor:
            return loss(model, batch) + torch.empty(2**46).sum()

        cost = measure_cost(job(rows=4, width=16, loss=huge), ["fp32"], rounds=1)
        assert cost.costs[0].out_of_memory
        assert codes(cost)[0] == "HD204"

    def test_another_failure_is_told_with_its_line(self) -> None:
        def wrong(model: nn.Module, batch: Tensor) -> Tensor:
            if torch.is_autocast_enabled(device_type()):
                raise TypeError("no half here\nand more")
            return loss(model, batch)

        cost = measure_cost(job(rows=4, width=16, loss=wrong), HALF, rounds=1)
        (found,) = (found for found in cost.findings if found.code == "HD100")
        assert "no half here" in found.message
        assert "and more" not in found.message.split("(in")[0]
        assert "test_cost.py" in found.message
        assert "ran in fp32" in found.cure
        assert cost.costs[0].seconds is not None

    def test_other_errors_are_not_taken_for_it(self) -> None:
        assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
        assert not is_out_of_memory(ValueError("not enough memory"))
