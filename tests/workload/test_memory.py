"""The bytes of a step by part: equal to sizes computed by hand, and to torch's profiler at the peak."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import autocast
from halfguard.records.cost import StepMemory
from halfguard.step.random_state import seeded
from halfguard.workload.memory import measure_step_memory
from tests.support.devices import chosen_device

pytestmark = pytest.mark.usefixtures("device")

Step = Callable[[], object]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with seeded(0):
        yield


def mlp(inside: int, wide: int, outside: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inside, wide), nn.ReLU(), nn.Linear(wide, outside))


def stepper(model: nn.Module, optimizer: Optimizer, batch: Tensor, precision: str = "fp32") -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, chosen_device().type):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def measured(model: nn.Module, optimizer: Optimizer, step: Step) -> StepMemory:
    step()
    return measure_step_memory(step, model=model, optimizer=optimizer, device=chosen_device())


SIZES = st.integers(1, 48)


@settings(max_examples=25, deadline=None)
@given(rows=SIZES, inside=SIZES, wide=SIZES, outside=SIZES, half=st.booleans())
def test_the_parts_of_an_mlp_are_those_computed_by_hand(
    rows: int, inside: int, wide: int, outside: int, half: bool
) -> None:
    model, batch = mlp(inside, wide, outside), torch.randn(rows, inside)
    optimizer = AdamW(model.parameters())
    step = stepper(model, optimizer, batch, "fp16-mixed" if half else "fp32")
    parts = measured(model, optimizer, step).largest

    count = inside * wide + wide + wide * outside + outside
    assert parts.weights == parts.gradients == 4 * count
    # Two moments, and a step count a tensor, which newer versions of torch keep on the host.
    counts = [state["step"] for state in optimizer.state.values()]
    on_device = sum(each.device.type == chosen_device().type for each in counts)
    assert parts.optimizer == 2 * 4 * count + 4 * on_device
    # The first layer keeps its input, the second the output of ReLU, the square the output as float32.
    inner = rows * inside + rows * wide
    assert parts.activations == (2 if half else 4) * inner + 4 * rows * outside
    assert parts.weight_copies == (2 * count if half else 0)
    assert parts.buffers == 0


def test_buffers_and_running_statistics_are_apart() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    optimizer = SGD(model.parameters(), 0.1)
    memory = measured(model, optimizer, stepper(model, optimizer, torch.randn(2, 3, 8, 8)))
    assert memory.largest.buffers == 2 * 8 * 4 + 8  # mean, variance, and an int64 that counts
    assert memory.largest.optimizer == 0
    assert memory.largest.weights == 4 * (8 * 3 * 3 * 3 + 16)


def test_master_weights_belong_to_the_optimizer() -> None:
    model = mlp(16, 32, 8).half()
    optimizer = MasterWeights(SGD(model.parameters(), 0.1))
    count = sum(p.numel() for p in model.parameters())
    step = stepper(model, optimizer, torch.randn(4, 16), "fp16-weights")
    parts = measured(model, optimizer, step).largest
    assert parts.weights == 2 * count
    assert parts.optimizer >= 4 * count
    assert parts.weight_copies == 0


def test_checkpointing_keeps_the_input_of_a_segment_only() -> None:
    rows, width = 64, 32
    layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6))

    class Deep(nn.Module):
        def __init__(self, segment: bool) -> None:
            super().__init__()
            self.layers, self.segment = layers, segment

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.segment else layer(x)
            return x

    optimizer = SGD(layers.parameters(), 0.1)
    batch = torch.randn(rows, width)
    found = {
        segment: measured(model, optimizer, stepper(model, optimizer, batch)).largest.activations
        for segment, model in ((False, Deep(False)), (True, Deep(True)))
    }
    one = 4 * rows * width
    assert found[False] == one * (1 + 2 * 6)  # the batch, each product, each output
    assert found[True] <= one * (1 + 6 + 2)  # the batch, each output, and one segment run again


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed"])
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
def test_the_peak_is_that_of_torchs_own_profiler(precision: str) -> None:
    model, batch = mlp(64, 256, 32), torch.randn(512, 64)
    optimizer = AdamW(model.parameters())
    step = stepper(model, optimizer, batch, precision)
    step()
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    optimizer.zero_grad()
    memory = measure_step_memory(step, model=model, optimizer=optimizer, device=chosen_device())
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    events = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    parts = memory.largest
    grown = memory.peak - parts.weights - parts.optimizer - parts.buffers - batch.nbytes
    # A half kernel of a CPU may need room of its own, which no tensor shows.
    assert grown == peak if precision == "fp32" else 0.5 * peak < grown <= peak


@pytest.mark.on_standin
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed"])
def test_the_peak_is_that_of_the_devices_own_allocator(
    precision: str, device: torch.device
) -> None:
    allocator = None if device.type == "cpu" else torch.get_device_module(device)
    gc.collect()  # what earlier tests left behind must not be freed in the middle of the step
    others = 0 if allocator is None else allocator.memory_allocated(device)
    model, batch = mlp(64, 256, 32), torch.randn(512, 64)
    optimizer = AdamW(model.parameters())
    step = stepper(model, optimizer, batch, precision)
    step()
    optimizer.zero_grad()
    memory = measure_step_memory(step, model=model, optimizer=optimizer, device=device)
    if allocator is None:
        assert memory.allocator_peak is None
    else:
        assert memory.allocator_peak is not None
        assert memory.peak == pytest.approx(memory.allocator_peak - others, rel=0.01)


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("fused", [False, True])
def test_measuring_changes_no_bit(precision: str, fused: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 4)
    )
    batch, results = torch.randn(4, 3, 8, 8), []
    for measure in (False, True):
        twin = copy.deepcopy(model)
        optimizer = AdamW(twin.parameters(), fused=fused)
        step = stepper(twin, optimizer, batch, precision)
        torch.manual_seed(2)
        for _ in range(3):
            if measure:
                measure_step_memory(step, model=twin, optimizer=optimizer, device=chosen_device())
            else:
                step()
        results.append(twin.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(r.values() for r in results), strict=True))


def test_a_second_derivative_goes_through_the_hooks() -> None:
    model = mlp(8, 16, 1)
    batch = torch.randn(4, 8, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(model(batch).tanh().sum(), batch, create_graph=True)
        return slope.square().mean()

    penalty().backward()
    wanted = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    optimizer = SGD(model.parameters(), 0.1)
    measure_step_memory(
        lambda: penalty().backward(), model=model, optimizer=optimizer, device=chosen_device()
    )
    for param, want in zip(model.parameters(), wanted, strict=True):
        assert (param.grad is None) == (want is None)
        assert want is None or torch.equal(param.grad, want)  # type: ignore[arg-type]


def test_hooks_are_gone_afterwards_also_when_the_step_raises() -> None:
    model = mlp(8, 8, 8)
    optimizer = SGD(model.parameters(), 0.1)

    def broken() -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        measure_step_memory(broken, model=model, optimizer=optimizer, device=chosen_device())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_post_hooks
    stepper(model, optimizer, torch.randn(2, 8))()
