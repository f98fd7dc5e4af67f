"""The scaler equals torch's unless its bounds or the cause of an overflow make a difference."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from halfguard.errors import UsageError
from halfguard.guard.stepping.scaler import GradScaler
from halfguard.precision.master_weights import MasterWeights
from tests.guard.helper import frozen, inject, parameter, same
from tests.support.cases import each
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device
from tests.support.models import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("device")

kinds = st.lists(st.sampled_from(["healthy", "healthy", "overflow"]), min_size=1, max_size=25)
all_kinds = st.lists(
    st.sampled_from(["healthy", "healthy", "overflow", "forward"]), min_size=1, max_size=30
)
LOSS = {"healthy": 1.0, "overflow": 1.0, "forward": math.nan}
GRAD = {"healthy": 0.5, "overflow": math.inf, "forward": math.nan}


def one_step(
    scaler: torch.amp.GradScaler,
    optimizer: Optimizer,
    p: Tensor,
    kind: str,
    *,
    unscale: bool = False,
) -> None:
    optimizer.zero_grad()
    scaler.scale(inject(p, LOSS[kind], GRAD[kind])).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def ours(**options: Any) -> GradScaler:
    bounds = {"init_scale": 2.0**8, "growth_interval": 3, "floor": 2.0**-40, "ceiling": 2.0**60}
    return GradScaler(chosen_device().type, **(bounds | options))


def torchs() -> torch.amp.GradScaler:
    return torch.amp.GradScaler(chosen_device().type, init_scale=2.0**8, growth_interval=3)


# -- within its bounds it equals torch's scaler


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=40, deadline=None)
@given(steps=kinds)
def test_bitwise_as_torch(name: str, unscale: bool, steps: list[str]) -> None:
    runs = []
    for scaler in (ours(), torchs()):
        p = parameter()
        optimizer = OPTIMIZERS[name]([p])
        history = []
        for kind in steps:
            before = frozen(p)
            one_step(scaler, optimizer, p, kind, unscale=unscale)
            history.append(scaler.state_dict())
            if isinstance(scaler, GradScaler):
                applied = scaler.last_step_applied
                assert isinstance(applied, Tensor)
                assert bool(applied) == (kind == "healthy") == (not same(before, frozen(p)))
        runs.append([history, frozen(p), frozen(optimizer.state_dict())])
    assert same(runs[0], runs[1])


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.on_standin
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_bitwise_as_torch_with_two_optimizers(steps: list[tuple[bool, bool]]) -> None:
    runs = []
    for scaler in (ours(), torchs()):
        pair = [parameter(), parameter(2.0)]
        optimizers: list[Optimizer] = [SGD(pair[:1], lr=0.1), AdamW(pair[1:], fused=True)]
        history = []
        for bad in steps:
            for p, optimizer, sick in zip(pair, optimizers, bad, strict=True):
                optimizer.zero_grad()
                scaler.scale(inject(p, 1.0, math.inf if sick else 0.5)).backward()
                scaler.step(optimizer)
            if isinstance(scaler, GradScaler):
                assert scaler.last_step_applied is not None
                assert bool(scaler.last_step_applied) == (not any(bad))
            scaler.update()
            history.append(scaler.state_dict())
        runs.append([history, frozen(pair), [frozen(o.state_dict()) for o in optimizers]])
    assert same(runs[0], runs[1])


def test_scaled_outputs_are_torchs_whatever_their_container() -> None:
    def losses() -> list[Tensor]:
        return [torch.tensor(1.0), torch.tensor([2.0, 3.0])]

    containers: list[Callable[[], Any]] = [
        lambda: losses()[0], losses, lambda: tuple(losses()), lambda: [losses(), losses()],
        lambda: iter(losses()), lambda: (loss for loss in losses()), lambda: map(iter, [losses()]),
    ]  # fmt: skip
    for make in containers:
        found, expected = ours().scale(make()), torchs().scale(make())
        assert same(_listed(found), _listed(expected))
    with pytest.raises(ValueError, match="Tensor or an iterable of Tensors"):
        ours().scale(1.0)


def _listed(outputs: Any) -> Any:
    if isinstance(outputs, Iterable) and not isinstance(outputs, Tensor):
        return [_listed(item) for item in outputs]
    return outputs


def test_it_is_a_torch_scaler() -> None:
    assert isinstance(GradScaler(chosen_device().type), torch.amp.GradScaler)
    assert GradScaler(chosen_device().type).is_enabled()
    assert GradScaler(chosen_device().type).last_step_applied is None  # until there was a step
    assert GradScaler().get_scale() == torch.amp.GradScaler(chosen_device().type).get_scale()


def test_switched_off_it_does_nothing() -> None:
    scaler = GradScaler("cuda", enabled=False)  # as with torch's: CUDA is not used
    p = parameter()
    loss = inject(p)
    assert scaler.scale(loss) is loss
    loss.backward()  # type: ignore[no-untyped-call]
    scaler.step(SGD([p], lr=0.1))
    scaler.update()
    assert p[0].item() == pytest.approx(0.9)
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})


@pytest.mark.on_standin
def test_it_adds_no_host_sync() -> None:
    for name, make in OPTIMIZERS.items():
        for kind in ("healthy", "overflow", "forward"):
            syncs = []
            for scaler in (ours(), torchs()):
                p = parameter()
                optimizer = make([p])
                one_step(scaler, optimizer, p, kind)  # creates lazy state
                with OpCounter() as counter:
                    one_step(scaler, optimizer, p, kind, unscale=True)
                    one_step(scaler, optimizer, p, kind)
                    if isinstance(scaler, GradScaler):
                        assert scaler.last_step_applied is not None
                syncs.append(counter.host_syncs)
            assert syncs[0] <= syncs[1], (name, kind)


# -- overflows that the scale caused


@each("name", OPTIMIZERS)
@each("loss", [math.nan, math.inf, -math.inf])
@each("unscale", [False, True])
def test_a_forward_overflow_moves_neither_scale_nor_growth(
    name: str, loss: float, unscale: bool
) -> None:
    scaler = ours(growth_interval=4)
    p = parameter()
    optimizer = OPTIMIZERS[name]([p])
    for kind in ("healthy", "healthy"):
        one_step(scaler, optimizer, p, kind)
    before, weights = scaler.state_dict(), frozen(p)
    for _ in range(20):
        optimizer.zero_grad()
        scaler.scale(inject(p, loss, math.nan)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert scaler.last_step_applied is not None
        assert not scaler.last_step_applied
        scaler.update()
        assert scaler.state_dict() == before
        assert same(frozen(p), weights)
    one_step(scaler, optimizer, p, "healthy")
    one_step(scaler, optimizer, p, "healthy")
    assert scaler.get_scale() == 2.0**9, "the four healthy steps count as before"


def test_one_bad_loss_among_several_excuses_the_scale() -> None:
    scaler, p = ours(), parameter()
    optimizer = SGD([p], lr=0.1)
    for loss in (1.0, math.inf, 1.0):
        scaler.scale(inject(p, loss, math.inf)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**8
    one_step(scaler, optimizer, p, "overflow")
    assert scaler.get_scale() == 2.0**7, "the next step is judged by its own losses"


def test_a_finite_vector_is_a_finite_loss() -> None:
    # Its sum leaves the range of half, but nothing in it does.
    losses = torch.full((100,), 6e4, dtype=torch.float16)
    scaler, p = ours(), parameter()
    scaler.scale([losses, inject(p, 1.0, math.inf)])[1].backward()
    scaler.step(SGD([p], lr=0.1))
    scaler.update()
    assert scaler.get_scale() == 2.0**7


@pytest.mark.on_standin
def test_a_witness_excuses_the_scale() -> None:
    scaler, p = ours(), parameter()
    optimizer = SGD([p], lr=0.1)
    scaler.scale(inject(p, 1.0, math.nan)).backward()
    scaler.note_loss(torch.tensor([1.0, math.inf]))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**8


# -- within its bounds


@dataclass
class Reference:
    """The rules of the scale, in plain Python."""

    growth_interval: int = 3
    floor: float = 2.0**4
    ceiling: float = 2.0**10
    scale: float = 2.0**8
    tracker: int = 0

    def step(self, kind: str) -> None:
        if kind == "overflow":
            self.tracker = 0
            self.scale = max(self.scale * 0.5, self.floor)
        elif kind == "healthy":
            self.tracker += 1
            if self.tracker == self.growth_interval:
                self.scale = min(self.scale * 2.0, self.ceiling)
                self.tracker = 0


def test_a_shorter_interval_is_reached_by_the_next_good_step() -> None:
    scaler, p = ours(init_scale=8.0, growth_interval=10), parameter()
    optimizer = AdamW([p], fused=True)
    for _ in range(6):
        one_step(scaler, optimizer, p, "healthy")
    scaler.set_growth_interval(4)
    scales = []
    for _ in range(5):
        one_step(scaler, optimizer, p, "healthy")
        scales.append(scaler.get_scale())
    assert scales == [16, 16, 16, 16, 32]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(steps=all_kinds)
def test_scale_follows_the_reference(steps: list[str]) -> None:
    reference = Reference()
    scaler = ours(floor=2.0**4, ceiling=2.0**10)
    p = parameter()
    optimizer = AdamW([p], fused=True)
    for kind in steps:
        before = frozen(p)
        one_step(scaler, optimizer, p, kind)
        reference.step(kind)
        assert scaler.get_scale() == reference.scale
        assert scaler._get_growth_tracker() == reference.tracker
        assert scaler.last_step_applied is not None
        assert bool(scaler.last_step_applied) == (kind == "healthy")
        assert same(before, frozen(p)) == (kind != "healthy")


def test_torchs_scale_reaches_zero_and_ours_its_floor() -> None:
    scales = {}
    for scaler in (GradScaler(chosen_device().type), torch.amp.GradScaler(chosen_device().type)):
        p = parameter()
        optimizer = SGD([p], lr=0.1)
        for _ in range(200):
            one_step(scaler, optimizer, p, "overflow")
        scales[type(scaler).__module__] = scaler.get_scale()
        one_step(scaler, optimizer, p, "healthy")
        healthy = bool(p.isfinite().all())
        assert healthy == isinstance(scaler, GradScaler), "with a scale of 0 every step is poison"
    assert scales == {"halfguard.guard.stepping.scaler": 2.0**-14, "torch.amp.grad_scaler": 0.0}


@pytest.mark.parametrize(("new", "kept"), [(0.0, 2.0), (1e30, 2.0**10), (64.0, 64.0)])
def test_a_scale_set_by_hand_stays_within_bounds(new: float, kept: float) -> None:
    scaler = ours(floor=2.0, ceiling=2.0**10)
    scaler.scale(torch.ones(()))
    scaler.update(new)
    assert scaler.get_scale() == kept
    scaler.update(torch.tensor(new))
    assert scaler.get_scale() == kept


# -- was the step applied?


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_refuse_decides_the_step_but_not_the_scale(name: str) -> None:
    scaler, p = ours(), parameter()
    optimizer = OPTIMIZERS[name]([p])
    one_step(scaler, optimizer, p, "healthy")
    before = (frozen(p), frozen(optimizer.state_dict()), scaler.state_dict())
    optimizer.zero_grad()
    scaler.scale(inject(p)).backward()
    scaler.unscale_(optimizer)
    scaler.override_found_inf(optimizer, torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    assert same(before, (frozen(p), frozen(optimizer.state_dict()), scaler.state_dict()))
    assert scaler.last_step_applied is not None
    assert not scaler.last_step_applied


@pytest.mark.parametrize("overflow", [False, True])
def test_refusing_one_optimizer_needs_no_refusal_of_the_others(overflow: bool) -> None:
    for refused_first in (True, False):
        scaler = ours()
        pair = [parameter(), parameter()]
        optimizers = [SGD([p], lr=0.1) for p in pair]
        for i, (p, optimizer) in enumerate(zip(pair, optimizers, strict=True)):
            refused = (i == 0) == refused_first
            sick = overflow and not refused
            scaler.scale(inject(p, 1.0, math.inf if sick else 1.0)).backward()
            scaler.unscale_(optimizer)
            if refused:
                scaler.override_found_inf(optimizer, torch.ones(()))
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (2.0**7 if overflow else 2.0**8)


# -- state


@pytest.mark.on_standin
@settings(max_examples=40, deadline=None)
@given(steps=all_kinds, cut=st.integers(0, 30))
def test_resumed_it_is_bitwise_the_same(steps: list[str], cut: int) -> None:
    scaler = ours(floor=2.0**6)
    p = parameter()
    optimizer = SGD([p], lr=0.1)
    saved = scaler.state_dict()
    for i, kind in enumerate(steps):
        if i == cut:
            saved = scaler.state_dict()
        one_step(scaler, optimizer, p, kind)
    again = ours(floor=2.0**6)
    again.load_state_dict(saved)
    for kind in steps[cut:] if cut < len(steps) else steps:
        one_step(again, optimizer, p, kind)
    assert again.state_dict() == scaler.state_dict()


@pytest.mark.on_standin
def test_state_goes_to_torchs_scaler_and_back() -> None:
    mine, p = ours(), parameter()
    optimizer = SGD([p], lr=0.1)
    for kind in ("healthy", "overflow", "healthy"):
        one_step(mine, optimizer, p, kind)
    other = torch.amp.GradScaler(chosen_device().type)
    other.load_state_dict(mine.state_dict())
    assert other.state_dict() == mine.state_dict()
    back = ours(floor=4.0, ceiling=2.0**20)
    back.load_state_dict(other.state_dict())
    assert back.state_dict() == other.state_dict()
    assert (back._floor, back._ceiling) == (4.0, 2.0**20), "bounds are those it was made with"


@each(("scale", "kept"), [(0.0, 2.0**-14), (2.0**30, 2.0**24), (512.0, 512.0)])
@each("in_use", [True, False])
def test_a_loaded_scale_is_brought_within_bounds(scale: float, kept: float, in_use: bool) -> None:
    # torch's scaler may have saved a scale of 0; the next step would then write NaN to the weights.
    state = torch.amp.GradScaler(chosen_device().type).state_dict()
    saved = state | {"scale": scale, "_growth_tracker": 3}
    scaler = GradScaler(chosen_device().type)
    if in_use:
        scaler.scale(torch.ones(()))
    scaler.load_state_dict(saved)
    assert (scaler.get_scale(), scaler._get_growth_tracker()) == (kept, 3)
    assert scaler.scale(torch.ones(())).item() == kept


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_keep_bounds_and_counts(copied: Callable[[GradScaler], GradScaler]) -> None:
    scaler, p = ours(floor=4.0), parameter()
    for kind in ("healthy", "overflow"):
        one_step(scaler, SGD([p], lr=0.1), p, kind)
    assert copied(scaler).state_dict() == scaler.state_dict()


# -- mistakes


@each("unscale", [True, False])
@each("foreach", [True, False])
def test_fp16_parameters_are_refused_with_the_cure(foreach: bool, unscale: bool) -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler, optimizer = ours(), SGD([p], lr=0.1, foreach=foreach)
    scaler.scale(p.sum().float()).backward()
    with pytest.raises(UsageError, match="upcast_trainable") as caught:
        scaler.unscale_(optimizer) if unscale else scaler.step(optimizer)
    assert "MasterWeights" in caught.value.cure
    assert torch.equal(p, torch.ones(2, dtype=torch.float16))


def test_fp16_parameters_in_a_fused_optimizer_are_warned_of() -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler = ours()
    scaler.scale(p.sum().float()).backward()
    with pytest.warns(UserWarning, match="1 of the optimizer's parameters are float16"):
        scaler.step(AdamW([p], fused=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_are_accepted_without_a_word(name: str) -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = MasterWeights(OPTIMIZERS[name]([p]))
    scaler = ours()
    for loss, applied in ((1.0, True), (math.nan, False), (1.0, True)):
        before = frozen(optimizer.state_dict()["masters"])
        scaler.scale((p * loss).sum().float()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.last_step_applied is not None
        assert bool(scaler.last_step_applied) is applied
        assert same(before, frozen(optimizer.state_dict()["masters"])) is not applied
    assert scaler.get_scale() == 2.0**8


@each("unscale", [True, False])
@each("name", OPTIMIZERS)
def test_without_gradients_the_error_says_why(name: str, unscale: bool) -> None:
    scaler, p = ours(), parameter()
    optimizer = OPTIMIZERS[name]([p])
    scaler.scale(torch.tensor(1.0))
    if unscale:
        scaler.unscale_(optimizer)
    with pytest.raises(UsageError, match="No gradient reached the optimizer") as caught:
        scaler.step(optimizer)
    assert "model.to(device)" in caught.value.cure


def test_update_without_step() -> None:
    scaler = ours()
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(UsageError, match="no optimizer was stepped") as caught:
        scaler.update()
    assert "scaler.step(optimizer)" in caught.value.cure


def test_torchs_own_mistakes_are_still_told() -> None:
    scaler, p = ours(), parameter()
    optimizer = SGD([p], lr=0.1)
    scaler.scale(inject(p)).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_an_error_not_a_warning() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):  # and a warning would be an error here
        GradScaler("cuda")


@each(
    "options",
    [
        {"growth_factor": 1.0}, {"growth_factor": math.nan}, {"backoff_factor": 1.0},
        {"backoff_factor": 0.0}, {"floor": 0.0}, {"floor": -1.0},
        {"floor": 8.0, "init_scale": 4.0}, {"ceiling": 8.0}, {"init_scale": math.nan},
        {"growth_interval": 0},
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="GradScaler needs"):
        GradScaler(chosen_device().type, **options)
