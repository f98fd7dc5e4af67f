"""Steps that fit, that do not, and that never came to their end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halfguard import Workload
from halfguard.diagnosis.cost import measure_cost
from halfguard.errors import UsageError
from halfguard.records.sizes import format_bytes
from halfguard.workload.user_error import is_out_of_memory
from tests.diagnosis.cost.jobs import HALF, codes, job, loss
from tests.support.devices import device_type

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]


class TestFits:
    @pytest.mark.slow
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
        assert "test_fits.py" in found.message
        assert "passed in fp32" in found.cure
        assert cost.costs[0].seconds is not None

    def test_other_errors_are_not_taken_for_it(self) -> None:
        assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
        assert not is_out_of_memory(ValueError("not enough memory"))
