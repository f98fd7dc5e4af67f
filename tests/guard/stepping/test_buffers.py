"""A skipped step restores the buffers bitwise; an applied step keeps the new values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halfguard.guard.stepping.buffers import Buffers
from tests.guard.helper import frozen, same
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")


class Own(nn.Module):
    """Buffers of many kinds, changed in place by every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("seen", torch.zeros(2, 2, dtype=torch.bool))
        self.register_buffer("small", torch.ones(3, dtype=torch.float16))
        self.register_buffer("strided", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("fleeting", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for name, buffer in self.named_buffers():
            if name == "seen":
                buffer.logical_not_()
            else:
                buffer.add_(1)
        return x


def network() -> nn.Sequential:
    def norm() -> nn.BatchNorm1d:
        return nn.BatchNorm1d(4)

    return nn.Sequential(norm(), Own(), norm(), nn.BatchNorm1d(4, track_running_stats=False))


def all_buffers(model: nn.Module) -> Buffers:
    """Track every buffer of a model, as if a look had seen all of them change."""
    buffers = Buffers(model)
    tracked = set(map(id, buffers.tensors()))
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in tracked:
                buffers.track(module._buffers, name)
    return buffers


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def forward(model: nn.Module, value: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(3)
    model(torch.randn(8, 4, generator=generator) * value)


@each("value", [1.0, float("nan"), float("inf")])
@each("how", ["restore", "where"])
def test_all_buffers_are_as_they_were(how: str, value: float) -> None:
    model = network()
    buffers = all_buffers(model)
    forward(model)
    before = state(model)
    buffers.keep()
    forward(model, value)
    assert not same(before, state(model))
    if how == "restore":
        buffers.restore()
    else:
        buffers.restore_where(torch.tensor(True))
    assert same(before, state(model))


def test_an_applied_step_keeps_what_it_did() -> None:
    model = network()
    buffers = all_buffers(model)
    buffers.keep()
    forward(model)
    after = state(model)
    buffers.restore_where(torch.tensor(False))
    assert same(after, state(model))


@pytest.mark.parametrize("how", ["host", "device"])
def test_an_applied_step_keeps_no_statistic_that_is_not_finite(how: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    buffers = Buffers(model)
    forward(model)
    before = state(model)
    buffers.keep()
    x = torch.arange(32.0).view(8, 4)
    x[3, 1] = torch.nan
    model(x)
    total = buffers.sum_of_statistics()
    assert not total.isfinite()
    if how == "host":
        assert buffers.restore_nonfinite()
        assert not buffers.restore_nonfinite()
    else:
        buffers.restore_where(torch.tensor(False))
    after = state(model)
    assert all(buffer.isfinite().all() for buffer in after.values())
    name = "0.running_mean"
    assert after[name][1] == before[name][1]
    assert (after[name][[0, 2, 3]] != before[name][[0, 2, 3]]).all(), "finite values stay"


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True), nn.SyncBatchNorm(4)]
)
def test_batchnorm_alone(norm: nn.Module) -> None:
    model = nn.Sequential(norm, Own())
    buffers = Buffers(model)
    before = frozen(dict(norm.named_buffers()))
    buffers.keep()
    for buffer in model.buffers():
        buffer.fill_(1)
    moved = state(model[1])
    buffers.restore_where(torch.tensor(True))
    assert same(before, dict(norm.named_buffers()))
    assert same(moved, state(model[1])), "others are not ours to touch"


class Odd(nn.Module):
    """Buffers that no list of copies can hold: sparse, expanded, float8, and one that is resized."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(3).to_sparse())
        self.register_buffer("expanded", torch.zeros(1).expand(4))
        self.register_buffer("float8", torch.ones(3).to(torch.float8_e4m3fn))
        self.register_buffer("minimum", torch.zeros(0))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("removed", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self._buffers["adjacency"] = self.get_buffer("adjacency") * 2
        self.get_buffer("expanded").as_strided((1,), (1,)).add_(1)
        self.get_buffer("float8").copy_(torch.zeros(3))
        self.get_buffer("minimum").resize_(4).fill_(torch.inf)
        self._buffers["replaced"] = torch.ones(5, dtype=torch.float64)
        self._buffers["removed"] = None
        return x


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: b.to_dense().float().tolist() for name, b in model.named_buffers()}


@pytest.mark.parametrize("how", ["restore", "where"])
def test_buffers_of_every_kind(how: str) -> None:
    model = Odd()
    buffers = all_buffers(model)
    buffers.keep()
    assert buffers.needs_host
    for _ in range(3):
        before = values(model)
        buffers.keep()
        model(torch.ones(1))
        assert values(model) != before
        if how == "restore":
            buffers.restore()
        else:
            buffers.restore_where(torch.tensor(True))
        assert values(model) == before
    model(torch.ones(1))
    after = values(model)
    buffers.restore_where(torch.tensor(False))
    assert values(model) == after
    buffers.keep()  # one is gone now
    model(torch.ones(1))
    buffers.restore()
    assert values(model) == after


def test_a_buffer_that_cannot_be_written_is_copied_only_when_it_changes() -> None:
    model = Odd()
    buffers = all_buffers(model)
    buffers.keep()
    kept = buffers._single[0].saved
    buffers.keep()
    assert buffers._single[0].saved is kept
    buffers.restore()
    buffers.keep()
    assert buffers._single[0].saved is kept, "nothing had changed, so nothing was replaced"


def test_a_model_without_buffers() -> None:
    layer = nn.utils.skip_init(nn.Linear, 2, 2)  # type: ignore[no-untyped-call]
    buffers = Buffers(layer)
    buffers.keep()
    buffers.restore_where(torch.tensor(True))


@pytest.mark.on_standin
def test_kept_once_restored_often() -> None:
    model = network()
    buffers = all_buffers(model)
    before = state(model)
    buffers.keep()
    for _ in range(3):
        forward(model, float("nan"))
        buffers.restore()
        assert same(before, state(model))


@pytest.mark.parametrize("replaced", ["forward", "load"])
def test_a_buffer_that_was_replaced_is_still_protected(replaced: str) -> None:
    """A module may assign to its buffer, and loading with assign=True does the same to BatchNorm's."""

    class Average(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x

    model = nn.Sequential(Average() if replaced == "forward" else nn.BatchNorm1d(4))
    buffers = all_buffers(model)
    if replaced == "load":
        model.load_state_dict(frozen(model.state_dict()), assign=True)
    before = state(model)
    buffers.keep()
    forward(model, float("nan"))
    buffers.restore_where(torch.tensor(True))
    assert same(before, state(model))


@pytest.mark.on_standin
def test_operations_do_not_depend_on_the_number_of_buffers() -> None:
    totals = []
    for count in (1, 30):
        model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(count)))
        buffers = Buffers(model)
        buffers.keep()
        refused = torch.tensor(True)
        with OpCounter() as counter:
            buffers.keep()
            buffers.restore_where(refused)
        assert counter.host_syncs == 0
        totals.append(counter.total)
    assert totals[0] == totals[1] <= 14  # four of them find statistics that are not finite
