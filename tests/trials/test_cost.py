"""Shares of a step's FLOPs and bytes, by module and by line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from halfguard.records.plan import Island, LineIsland
from halfguard.trials.cost import StepCosts, counted_costs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x)) * 2.0
        return x + self.down(h) @ torch.eye(8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def costs(seed: None) -> StepCosts:
    model = Net()
    with counted_costs(model) as costs:
        model(torch.randn(16, 8)).sum().backward()
    return costs


def line(text: str) -> LineIsland:
    source, first = inspect.getsourcelines(Block.forward)
    index = next(i for i, code in enumerate(source) if text in code)
    return LineIsland(file=__file__, line=first + index, code=source[index].strip())


ALL = 2 * (8 * 24 + 24 * 8 + 8 * 8)  # multiplications of one row


def test_a_module_has_the_products_inside_it(costs: StepCosts) -> None:
    assert costs.of([Island(module="layers.0.up")]).flops == pytest.approx(8 * 24 / ALL)
    assert costs.of([Island(module="layers.0")]).flops == pytest.approx(0.5)
    assert costs.of([Island(module="")]).flops == 1.0
    assert costs.of([Island(module="layers.0.norm")]).flops == 0.0
    assert costs.of([Island(module="layers.0.norm")]).bytes > 0.0


def test_a_pattern_has_all_its_members(costs: StepCosts) -> None:
    assert costs.of([Island(module="layers.*.up")]).flops == pytest.approx(2 * 8 * 24 / ALL)


def test_islands_inside_each_other_count_once(costs: StepCosts) -> None:
    both = [Island(module="layers.0"), Island(module="layers.0.up")]
    assert costs.of(both) == costs.of(both[:1])


def test_a_line_has_its_own_products_and_not_those_of_layers(costs: StepCosts) -> None:
    assert costs.of([line("* 2.0")]).flops == 0.0
    assert costs.of([line("torch.eye")]).flops == pytest.approx(2 * 8 * 8 / ALL)


def test_what_is_rescaled_stays_in_half(costs: StepCosts) -> None:
    cost = costs.of([Island(module="layers.*.up", kind="rescaled")])
    assert cost.flops == 0.0
    assert cost.bytes > 0.0
