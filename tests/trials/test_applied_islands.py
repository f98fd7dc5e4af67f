"""Islands inside each other in a model that is half by itself: each set is right, however it was reached."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.precision.islands import is_fp32_island, is_island, make_rescaled
from halfguard.records.plan import Island
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.line_islands import LineIslands
from tests.support.cases import each

pytestmark = pytest.mark.usefixtures("seed")


class RmsNorm(nn.Module):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.gain + self.shift


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), RmsNorm(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), Block(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


SETS = [(), ("block.norm",), ("block.norm", "block"), ("block", "block.norm"), ("block",), ("",)]


def applied(net: nn.Module) -> AppliedIslands:
    return AppliedIslands(net, (), LineIslands())


def islands_of(paths: Sequence[str]) -> list[Island]:
    return [Island(module=path) for path in paths]


def dtypes(net: nn.Module) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in net.state_dict().items()}


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    out = net(x)
    out.float().square().sum().backward()
    return [out.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


def assert_same(net: nn.Module, other: nn.Module, x: Tensor) -> None:
    assert dtypes(net) == dtypes(other)
    for mine, its in zip(gradients(net, x), gradients(other, x), strict=True):
        assert torch.equal(mine, its)
        assert mine.dtype is its.dtype


@each(("before", "after"), list(permutations(SETS, 2)))
def test_a_set_of_islands_is_the_same_whatever_it_was_before(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    net = Net().half()
    fresh, x = copy.deepcopy(net), (torch.randn(4, 8) * 1000).half()
    changed = applied(net)
    changed.set(islands_of(before))
    gradients(net, x)  # gradients exist when islands change
    changed.set(islands_of(after))
    applied(fresh).set(islands_of(after))
    assert_same(net, fresh, x)
    assert net(x).dtype is torch.float16


def test_the_outer_island_stays_right_when_the_inner_one_is_taken_back() -> None:
    net, x = Net().half(), (torch.randn(4, 8) * 1000).half()
    exact = copy.deepcopy(net).double()(x.double())
    made = applied(net)
    for paths in (["block.norm"], ["block.norm", "block"], ["block"]):
        made.set(islands_of(paths))
        assert ((net(x).double() - exact).norm() / exact.norm()).item() < 0.01
    made.set(islands_of(["block.norm"]))  # the other way round: the inner one stays
    made.set(islands_of(["block.norm", "block"]))
    made.set(islands_of(["block.norm"]))
    assert is_island(net.block.norm)
    assert not is_island(net.block)
    assert ((net(x).double() - exact).norm() / exact.norm()).item() < 0.01
    assert net.block.up.weight.dtype is torch.float16


def test_a_trial_of_an_outer_island_does_not_round_the_inner_weights() -> None:
    net = Net().half()
    made = applied(net)
    made.set(islands_of(["block.norm"]))
    with torch.no_grad():
        net.block.norm.gain.add_(2.0**-20)  # no half number
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with made.trial(islands_of(["block.norm", "block"])):
        assert dtypes(net)["block.up.weight"] is torch.float32
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert dtypes(net)["block.up.weight"] is torch.float16


def test_a_trial_without_an_island_does_not_round_its_weights() -> None:
    net = Net().half()
    made = applied(net)
    made.set(islands_of(["block.norm"]))
    with torch.no_grad():
        net.block.norm.gain.add_(2.0**-20)  # no half number
        net.block.norm.shift.add_(2.0**-30)
    gradients(net, torch.randn(4, 8).half())
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    storage = {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}
    with made.trial(islands_of(["first"])):
        assert dtypes(net)["block.norm.gain"] is torch.float16
        assert dtypes(net)["first.weight"] is torch.float32
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert dtypes(net)["block.norm.gain"] is torch.float32
    assert dtypes(net)["first.weight"] is torch.float16
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == storage
    assert is_island(net.block.norm)
    assert not is_island(net.first)


def test_an_island_of_the_user_inside_is_left_alone() -> None:
    net, x = Net().half(), (torch.randn(4, 8) * 1000).half()
    hg.fp32_island(net.block.norm)
    fresh = copy.deepcopy(net)
    made = applied(net)
    made.set(islands_of(["block"]))
    assert net(x).dtype is torch.float16
    made.set([])
    assert is_island(net.block.norm)
    assert_same(net, fresh, x)


def test_a_layer_that_the_user_rescaled_can_run_in_fp32_and_is_rescaled_again() -> None:
    net = Net()
    make_rescaled(net.first)
    made = applied(net)
    with made.trial(islands_of(["first"])):
        assert is_fp32_island(net.first)
    made.set([Island(module="first", kind="rescaled")])
    made.set([])
    assert is_island(net.first)
    assert not is_fp32_island(net.first)


def test_healing_and_taking_back_keeps_masters_and_optimizer_state() -> None:
    net = Net().half()
    optimizer = hg.MasterWeights(torch.optim.AdamW(net.parameters(), lr=1e-3))
    config = {"precision": "fp16-weights", "heal": {}, "scale": {"init": 64.0}}
    guard = hg.Guard(net, optimizer, config)
    assert guard._healing is not None

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean()

    for paths in (["block.norm"], ["block.norm", "block"], ["block"], []):
        guard._healing._applied.set(islands_of(paths))
        outcome = guard.step(loss_fn, torch.randn(4, 8).half())
        assert outcome.applied
        assert all(p.isfinite().all() for p in net.parameters())
    assert set(dtypes(net).values()) == {torch.float16}
