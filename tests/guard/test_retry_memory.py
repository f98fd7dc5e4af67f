"""A repeat in FP32 fits where its step in FP16 fitted, and computes the same bits."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from halfguard.guard.guard import Guard
from halfguard.guard.stepping.saved_on_host import SavedOnHost
from halfguard.records import Action
from halfguard.workload.memory import measure_step_memory
from tests.support.devices import chosen_device, place
from tests.support.models import differences, out_of_memory

pytestmark = pytest.mark.usefixtures("accelerator", "seed")

AT_MOST = 1.05  # of the peak of the step in FP16


class Block(nn.Module):
    """Attention over views of one storage, dropout, and a wide layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(scaled_dot_product_attention(q, k, v))
        return x + self.drop(self.down(nn.functional.gelu(self.up(x))))


class Convolutions(nn.Module):
    """Convolutions in channels_last, with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        image = x.unsqueeze(1).contiguous(memory_format=torch.channels_last)
        return self.last(torch.relu_(self.norm(self.first(image))))


class Gated(nn.Linear):
    """Multiplies expanded and transposed tensors."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = super().forward(x)
        gate = hidden.mean(-1, keepdim=True).expand_as(hidden)
        return (gate * hidden).mT @ hidden


class Checkpointed(Block):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: nn.Sequential(*(Block() for _ in range(4))),
    "checkpointed": lambda: nn.Sequential(*(Checkpointed() for _ in range(2))),
    "convolutions": Convolutions,
    "frozen half": lambda: nn.Sequential(nn.Linear(32, 32).half().requires_grad_(False), Block()),
    "gated": lambda: Gated(32, 32),
}


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    half = torch.is_autocast_enabled(chosen_device().type)
    return model(batch["x"]).float().square().mean() * (batch["in half"] if half else 1.0)


def batches(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"x": place(torch.randn(4, 64, 32, generator=generator)), "in half": 1.0}


def guarded(name: str, memory: str = "full", **config: Any) -> Guard:
    torch.manual_seed(0)
    model = place(MODELS[name]())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    skip = {"on_nonfinite": "retry_fp32", "retry_memory": memory}
    return Guard(model, optimizer, {"scale": {"init": 64.0}, "skip": skip} | config)


def cost_of_repeat(memory: str, accelerator: Any) -> tuple[float, float, float]:
    """Return the peak of a repeat over that of a step in FP16, by the allocator and by tensors; its time."""
    gc.collect()
    others = accelerator.memory_allocated()
    guard, began = guarded("blocks", memory), 0.0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal began
        began = time.process_time()
        accelerator.reset_peak_memory_stats()  # the repeat alone
        return loss_fn(model, batch)

    warm, healthy, bad = batches(3)
    bad["in half"] = math.inf
    guard.step(loss_fn, warm)
    peaks = []
    for batch in (healthy, bad):
        guard.step(loss, batch)
        peaks.append(accelerator.max_memory_allocated() - others)
    seconds = time.process_time() - began
    by_tensors = [
        measure_step_memory(
            lambda batch=batch: guard.step(loss_fn, batch),  # type: ignore[misc]
            model=guard.model,
            optimizer=guard.optimizers[0],
            device=chosen_device(),
        ).peak
        for batch in (healthy, bad)
    ]
    assert guard.summary().retried == 2
    return peaks[1] / peaks[0], by_tensors[1] / by_tensors[0], seconds


@pytest.mark.usefixtures("between_looks")
def test_a_repeat_needs_no_more_memory_than_its_step_in_half(accelerator: Any) -> None:
    full, by_tensors, seconds = cost_of_repeat("full", accelerator)
    less, less_by_tensors, longer = cost_of_repeat("half", accelerator)
    print(f"peak {full:.2f} and {less:.2f} of FP16, time {longer / seconds:.2f}")
    assert min(full, by_tensors) > AT_MOST >= max(less, less_by_tensors)


@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_the_same_to_the_bit(name: str) -> None:
    ends = []
    for memory in ("full", "half"):
        guard = guarded(name, memory, accumulate=2)
        for index, batch in enumerate(batches(8)):
            batch["in half"] = math.inf if index in (3, 4) else 1.0
            guard.step(loss_fn, batch)
        assert guard.summary().retried == 2
        ends.append(guard.model.state_dict())
    assert differences(*ends) == []


def count_in(path: Path) -> int:
    """Count in a file, which no repeat puts back."""
    with path.open("ab") as file:
        file.write(b"x")
        return file.tell()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_repeat_that_runs_out_of_memory_is_run_once_more(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(where: str, path: Path) -> dict[str, Any]:
        guard = guarded("convolutions")

        def loss(model: nn.Module, batch: Any) -> Tensor:
            found = loss_fn(model, batch)
            half = torch.is_autocast_enabled(chosen_device().type)
            if half or count_in(path) > 1 or where == "nowhere":
                return found
            if where == "forward":
                raise torch.OutOfMemoryError("no room")
            return out_of_memory(found)

        data = list(batches(4))
        data[1]["in half"] = data[3]["in half"] = math.inf
        actions = [guard.step(loss, batch).action for batch in data]
        assert actions == [Action.APPLY, Action.RETRY, Action.APPLY, Action.RETRY]
        return guard.model.state_dict()

    undisturbed = run("nowhere", tmp_path / "undisturbed")
    assert differences(undisturbed, run(where, tmp_path / "passes")) == []
    # The second step that is repeated begins as the first ended.
    assert (tmp_path / "passes").stat().st_size == 3
    assert sum("ran out of memory" in text for text in caplog.messages) == 1


@pytest.mark.parametrize(("memory", "passes"), [("full", 2), ("half", 1)])
def test_a_repeat_that_runs_out_of_memory_again_is_skipped(
    memory: str, passes: int, tmp_path: Path
) -> None:
    guard = guarded("convolutions", memory)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not torch.is_autocast_enabled(chosen_device().type):
            count_in(tmp_path / "passes")
            raise torch.OutOfMemoryError("no room")
        return loss_fn(model, batch)

    first, bad, last = batches(3)
    bad["in half"] = math.inf
    actions = [guard.step(loss, batch).action for batch in (first, bad, last)]
    assert actions == [Action.APPLY, Action.SKIP, Action.APPLY]
    assert (tmp_path / "passes").stat().st_size == passes


def test_a_storage_is_copied_once_and_an_expanded_tensor_stays_small(accelerator: Any) -> None:
    row = place(torch.randn(1000)).requires_grad_()
    with SavedOnHost(nn.Module()):
        wide = (row * 2).expand(1000, 1000)
        accelerator.reset_peak_memory_stats()
        before = accelerator.memory_allocated()
        loss = (wide * wide[:1]).sum()  # saves two tensors of one storage
        del wide
        loss.backward()
    assert accelerator.max_memory_allocated() - before < 3 * 4_000_000
    torch.testing.assert_close(row.grad, 8000 * row.detach())


def test_a_tensor_that_is_written_or_replaced_between_two_uses_is_copied_again() -> None:
    x = place(torch.ones(100)).requires_grad_()
    with SavedOnHost(nn.Module()):
        total = x.sum() * 0
        for factor in range(1, 20):  # freed storages are taken again
            total = total + (x * torch.full_like(x, factor)).sum()
        kept = torch.zeros_like(x)
        for factor in range(1, 20):
            total = total + (x * kept.fill_(factor)).sum()
        total.backward()
    assert torch.equal(x.grad, torch.full_like(x, 2 * 190.0))  # type: ignore[arg-type]
