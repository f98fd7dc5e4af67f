"""Situations in which ranks take different actions without the guard, and the same action with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from halfguard.errors import UsageError
from tests.dist.jobs import (
    FEATURES,
    Engine,
    Plan,
    batch_of,
    full_state,
    loss_fn,
    make,
    optimizer_of,
)
from tests.support.ranks import Group, HangError, Ranks


def plan_of(step: int) -> Plan:
    """Return a plan in which the loss of one rank is NaN at one step."""
    sick = (dist.get_rank(), step) == (1, 2)
    return Plan(1, slice(None), value=torch.nan) if sick else Plan()


def plain_loop(steps: int, ours: bool, leave_out: bool) -> list[float]:
    """Run a scaler in a plain loop; perhaps skip a NaN loss with ``continue``, as the web recommends."""
    model, net = make("ddp")
    optimizer = optimizer_of(model, "sgd")
    scaler = hg.GradScaler("cpu") if ours else torch.amp.GradScaler("cpu")
    scales = []
    for step in range(steps):
        net.plan = plan_of(step)
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch_of(step, 2, dist.get_rank()))
        if leave_out and torch.isnan(loss):
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(float(scaler.get_scale()))
    return scales


def guarded(steps: int) -> list[str]:
    model, net = make("ddp")
    guard = hg.Guard(model, optimizer_of(model, "sgd"))
    taken = []
    for step in range(steps):
        net.plan = plan_of(step)
        taken.append(str(guard.step(loss_fn, batch_of(step, 2, dist.get_rank())).action))
    return taken


@pytest.mark.slow
def test_continue_hangs_and_the_guard_does_not() -> None:
    group = Ranks(2)
    assert group.run(guarded, 5) == [["apply", "apply", "skip", "apply", "apply"]] * 2
    with pytest.raises(HangError):
        group.run(plain_loop, 5, False, True, timeout=10)


def test_the_scaler_by_itself_keeps_one_scale_on_all_ranks(ranks: Group) -> None:
    # The scale did not cause it, so it stays.
    assert ranks(2).run(plain_loop, 4, True, False) == [[65536.0] * 4] * 2
    assert ranks(2).run(plain_loop, 4, False, False) == [[65536.0, 65536.0, 32768.0, 32768.0]] * 2


def repeated_in(engine: Engine) -> list[Any]:
    """Check the dtypes of all layers in a step and in its repetition; return the actions."""
    model, net = make(engine)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"skip": {"on_nonfinite": "retry_fp32"}})
    seen: list[Any] = []
    for layer in net.layers:  # read between gathering and sharding
        layer.register_forward_pre_hook(lambda m, i: seen.append((m.weight.dtype, i[0].dtype)))
    taken = []
    for step in range(3):
        net.plan = (
            Plan(1, slice(None), value=torch.inf) if (dist.get_rank(), step) == (1, 1) else Plan()
        )
        taken.append(str(guard.step(loss_fn, batch_of(step, 2, dist.get_rank())).action))
    half, full = (torch.float16,) * 2, (torch.float32,) * 2
    assert seen == [half] * 12 + [full] * 3 + [half] * 3, seen
    return taken


def test_fsdp2_repeats_in_full_precision_and_returns_to_half(ranks: Group) -> None:
    assert ranks(2).run(repeated_in, "fsdp2") == [["apply", "retry_fp32", "apply"]] * 2


class Gated(nn.Module):
    """Two layers for tensor parallelism, and a norm that is not parallelized."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(FEATURES)
        nn.init.constant_(self.norm.weight, 0.05)  # so that its gradient is most of the norm
        self.plan = Plan()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.up(self.norm(x)))
        scores: torch.Tensor = self.down(x)
        if self.plan.layer >= 0:
            scores = scores * self.plan.value
        return scores


def two_dimensional(
    steps: int, clip: float | None, sequence: bool = False, alone: bool = False
) -> Any:
    """FSDP2 over tensor parallelism: two ranks share a batch, and three kinds of parameters exist."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Gated()
    data_rank, data_ranks = 0, 1
    if not alone:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:  # leaves gradients of the norm as sums of parts
            plan |= {"norm": SequenceParallel(sequence_dim=0)}
            plan["up"] = ColwiseParallel(input_layouts=Shard(0))
            cut = PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False
            )
            parallelize_module(net, mesh["model"], cut)
        parallelize_module(net, mesh["model"], plan)
        policy = MixedPrecisionPolicy(torch.float16, torch.float32)
        fully_shard(net, mesh=mesh["data"], mp_policy=policy)
        data_rank, data_ranks = mesh.get_local_rank("data"), 2
    config = {"clip": {"max_norm": clip} if clip else None, "desync": {"every": 1}}
    guard = hg.Guard(net, optimizer_of(net, "sgd"), config)
    seen = []
    for step in range(steps):
        bad = step == 2 and (alone or dist.get_rank() in {2, 3})
        net.plan = Plan(0, value=torch.nan) if bad else Plan()
        batch = batch_of(step, 2) if alone else batch_of(step, data_ranks, data_rank)
        outcome = guard.step(loss_fn, batch)
        seen.append((str(outcome.action), str(outcome.cause), outcome.scale, outcome.grad_norm))
    return seen, full_state(net)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_several_meshes_agree_over_all_ranks(
    ranks: Group, clip: float | None, sequence: bool
) -> None:
    answers = ranks(4).run(two_dimensional, 5, clip, sequence)
    expected, weights = two_dimensional(5, clip, alone=True)
    for seen, found in answers:
        assert seen[:2] == answers[0][0][:2]
        assert [step[:3] for step in seen] == [step[:3] for step in expected]
        assert all(
            abs(mine[3] - right[3]) < 2e-3 * right[3]
            for mine, right in zip(seen, expected, strict=True)
            if right[3] == right[3]
        )
        assert max((found[n] - weights[n]).abs().max().item() for n in weights) < 2e-3


class Experts(nn.Module):
    """A shared layer, and an expert that is private to each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.expert = nn.Linear(FEATURES, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart: torch.Tensor = self.expert(torch.tanh(self.shared(x).detach()))
        return apart + self.shared(x)[:, :4]


def experts(steps: int) -> Any:
    torch.manual_seed(dist.get_rank())
    net = Experts()
    ignored = [f"expert.{name}" for name, _ in net.expert.named_parameters()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)
    model = DistributedDataParallel(net)
    config = {"clip": {"max_norm": 1.0}, "scale": {"init": 256.0}}
    guard = hg.Guard(model, optimizer_of(model, "sgd"), config)
    seen = []
    for step in range(steps):
        bad = (dist.get_rank(), step) == (1, 2)
        if bad:
            hook = net.expert.weight.register_hook(lambda grad: grad * torch.inf)
        outcome = guard.step(loss_fn, batch_of(step, 2, dist.get_rank()))
        seen.append((str(outcome.action), outcome.scale, outcome.grad_norm, outcome.culprits))
        if bad:
            hook.remove()
    shared = {n: t for n, t in full_state(model).items() if n.startswith("shared")}
    return seen, shared


def test_an_expert_on_one_rank_overflows_for_all(ranks: Group) -> None:
    """Its gradients are not reduced, so ranks must agree on overflow and norm."""
    (seen, shared), (other, other_shared) = ranks(2).run(experts, 4)
    assert str(seen) == str(other)
    assert [action for action, *_ in seen] == ["apply", "apply", "skip", "apply"]
    assert [scale for _, scale, *_ in seen] == [256.0, 256.0, 256.0, 128.0]
    assert seen[2][3] == ("expert.weight",)
    assert all(torch.equal(shared[name], other_shared[name]) for name in shared)


class LoneExpert(nn.Module):
    """A shared layer and a table; rank 1 has an expert besides."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(FEATURES, 4)
        self.register_buffer("table", torch.arange(4.0))
        self.expert = nn.Linear(4, 4) if dist.get_rank() == 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.shared(x) + self.table
        return y if self.expert is None else y + self.expert(y.detach())


def lone_expert(max_norm: float | None) -> Any:
    torch.manual_seed(0)
    net = LoneExpert()
    if net.expert is not None:
        ignored = [f"expert.{name}" for name, _ in net.expert.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)
    model = DistributedDataParallel(net)
    config: dict[str, Any] = {"scale": {"init": 256.0}, "desync": {"every": 1}}
    config["clip"] = None if max_norm is None else {"max_norm": max_norm}
    guard = hg.Guard(model, optimizer_of(model, "sgd"), config)
    seen = []
    for step in range(4):
        x, y = batch_of(step, 2, dist.get_rank())
        bad = (dist.get_rank(), step) == (1, 2)
        outcome = guard.step(loss_fn, (x * torch.nan if bad else x, y))
        seen.append((str(outcome.action), outcome.grad_norm, outcome.culprits))
    return seen, net.shared.weight.detach().clone()


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_rank_may_have_parameters_that_others_lack(ranks: Group, max_norm: float | None) -> None:
    """All ranks send the same messages, although only one of them holds something alone."""
    (seen, shared), (other, other_shared) = ranks(2).run(lone_expert, max_norm)
    assert str(seen) == str(other)
    assert [action for action, *_ in seen] == ["apply", "apply", "skip", "apply"]
    assert "expert.weight" in seen[2][2]
    assert torch.equal(shared, other_shared)


def half_weights(steps: int, alone: bool = False) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net: nn.Module = nn.Linear(FEATURES, 4).half()
    model = net if alone else DistributedDataParallel(net)
    optimizer = hg.MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1))
    guard = hg.Guard(
        model, optimizer, {"precision": "fp16-weights", "accumulate": 2, "desync": {"every": 1}}
    )
    norms = []
    for step in range(2 * steps):
        part = batch_of(step, 2) if alone else batch_of(step, 2, dist.get_rank())
        norms.append(guard.step(loss_fn, part).grad_norm)
    masters = [master.detach().clone() for master in optimizer.master_parameters()]
    return full_state(model), masters, norms[1::2]


def test_master_weights_stay_equal(ranks: Group) -> None:
    (half, masters, norms), (other_half, other_masters, _) = ranks(2).run(half_weights, 20)
    *_, expected = half_weights(20, alone=True)
    assert norms == pytest.approx(expected, rel=0.02)  # counted once, not once per rank
    assert all(torch.equal(half[name], other_half[name]) for name in half)
    assert all(torch.equal(a, b) for a, b in zip(masters, other_masters, strict=True))


def closed_early(engine: Engine) -> str:
    model, _ = make(engine)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"accumulate": 4})
    for step in range(2):
        guard.step(loss_fn, batch_of(step, 2, dist.get_rank()))
    with pytest.raises(UsageError, match="2 of 4 micro-batches") as raised:
        guard.update()
    return raised.value.cure


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_step_whose_gradients_are_held_back_cannot_be_closed(
    ranks: Group, engine: Engine
) -> None:
    assert all(
        "Do not call update() for an incomplete step" in cure
        for cure in ranks(2).run(closed_early, engine)
    )


def remedied(steps: int) -> list[tuple[str, str]]:
    """Roll back to the FP32 remedy; return the dtype in which FSDP2 gathers the first layer's weights."""
    model, net = make("fsdp2")
    recovery = {"every": 2, "max_rollbacks": 0}
    config = {"skip": {"max_consecutive": 1}, "recovery": recovery}
    guard = hg.Guard(model, optimizer_of(model, "sgd"), config)
    seen: list[str] = []
    net.layers[0].register_forward_pre_hook(lambda m, i: seen.append(str(m.weight.dtype)))
    taken = []
    for step in range(steps):
        bad = (dist.get_rank(), step) == (1, 3)
        net.plan = Plan(1, slice(None), value=torch.nan) if bad else Plan()
        outcome = guard.step(loss_fn, batch_of(step, 2, dist.get_rank()))
        taken.append((str(outcome.action), seen[-1]))
    return taken


def test_fp32_as_a_remedy_reaches_fsdp2(ranks: Group) -> None:
    half, full = "torch.float16", "torch.float32"
    expected = [("apply", half)] * 3 + [("roll_back", half)] + [("apply", full)] * 2
    assert ranks(2).run(remedied, 6) == [expected] * 2
