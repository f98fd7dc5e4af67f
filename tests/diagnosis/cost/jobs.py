"""Jobs to measure, and what a machine of 1 TFLOP/s might have measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfguard import Workload
from halfguard.records.cost import Cost, MemoryParts, PrecisionCost, Spread, StepMemory

HALF = ("fp32", "fp16-mixed")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.inside(x)
        return x + inside


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().square().mean()


def job(rows: int, width: int, **changes: Any) -> Workload:
    model = Net(width)
    optimizer = torch.optim.AdamW(model.parameters())
    fields = {"loss": loss, "batches": [torch.randn(rows, width)], **changes}
    return Workload(model, optimizer=optimizer, **fields)


def codes(cost: Cost) -> list[str]:
    return [found.code for found in cost.findings]


def measured(
    *, ratio: float, seconds: float = 0.1, flops: float = 8e10, matmul: float = 0.3, **cost: Any
) -> Cost:
    """What a machine of 1 TFLOP/s might have shown; 80% of an FP32 step are matrix products."""
    memory = {
        name: StepMemory(largest=parts, in_pass=parts, in_update=MemoryParts())
        for name, parts in (
            ("fp32", MemoryParts(weights=10, activations=90)),
            ("half", MemoryParts(weights=10, activations=45)),
        )
    }
    base = PrecisionCost(
        precision="fp32", memory=memory["fp32"], seconds=seconds, operations=1000, flops=int(flops)
    )
    half = PrecisionCost(
        precision="fp16-mixed",
        memory=memory["half"],
        seconds=seconds * ratio,
        ratio=Spread(median=ratio, low=ratio, high=ratio),
        operations=1100,
        casts=cost.pop("casts", 50),
        flops=int(flops),
        matmul_ratio=matmul,
    )
    given = {"device": "cuda (A card)", "fp32_products": "highest", **cost}
    return Cost(rounds=9, product_flops=1e12, costs=(base, half), **given)
