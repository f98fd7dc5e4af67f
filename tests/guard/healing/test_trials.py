"""Looking into a step changes nothing of the user's, and what is said of it is true."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from halfguard.guard.step_batches import StepBatches, copy_of
from halfguard.precision.islands import is_island
from halfguard.records.plan import Island, LineIsland, PrecisionPlan
from halfguard.trials.line_islands import LineIslands

pytestmark = pytest.mark.usefixtures("seed")
Loss = Callable[[nn.Module, Any], Tensor]


class RmsNorm(nn.Module):
    def __init__(self, *, casts: bool = False) -> None:
        super().__init__()
        self.casts = casts

    def forward(self, x: Tensor) -> Tensor:
        x = x.half() if self.casts else x
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def in_place(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch["x"].mul_(0.5)).float(), batch["y"])


def popping(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch.pop("x") * 0.5).float(), batch.pop("y"))


def loud_batches(count: int) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        x = torch.randn(16, 16, generator=noise)
        x[::4] *= 1000
        batches.append({"x": x, "y": torch.randint(4, (16,), generator=noise)})
    return batches


def train(loss_fn: Loss, config: dict[str, Any], *, casts: bool = False) -> tuple[hg.Guard, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), RmsNorm(casts=casts), nn.Linear(32, 4))
    guard = hg.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), config | {"scale": {"init": 1024.0}}
    )
    batches = loud_batches(6)
    for batch in batches:
        guard.step(loss_fn, batch)
    return guard, batches


@pytest.mark.parametrize("loss_fn", [in_place, popping])
def test_a_watched_run_is_bitwise_the_run_without_it(loss_fn: Loss) -> None:
    bare, data = train(loss_fn, {})
    watched, seen = train(loss_fn, {"watch": {"every": 5}})
    for mine, other in zip(bare.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    for batch, same in zip(data, seen, strict=True):
        assert batch.keys() == same.keys()
        assert all(torch.equal(batch[key], same[key]) for key in batch)
    assert watched.watching.alarms


def test_a_trial_shares_the_tensors_of_a_batch_and_no_container() -> None:
    data, collects = torch.randn(100, 4), torch.randn(8, requires_grad=True)
    batch: Any = {"x": data[10:12], "pair": [data[:2], collects], "name": "a"}
    copied = copy_of(batch)
    assert copied["x"] is batch["x"]
    assert copied["pair"][0] is batch["pair"][0]
    assert copied["pair"] is not batch["pair"]
    copied["pair"][1].sum().backward()
    assert collects.grad is None


@pytest.mark.usefixtures("between_looks")
def test_an_island_is_proven_on_the_batch_as_it_was_given() -> None:
    guard, batches = train(in_place, {"watch": {"every": 5}, "heal": {}})
    given = loud_batches(6)
    for batch, before in zip(batches, given, strict=True):
        assert torch.equal(batch["x"], before["x"] * 0.5)
    assert len(guard._healing.state_dict()["healed"]) == 1


def test_a_step_that_fp32_cannot_run_is_not_called_infinite(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(popping, {"watch": {"every": 5}, "heal": {}}, casts=True)
    assert "must have the same dtype" in caplog.text
    assert "not finite in FP32" not in caplog.text


def test_a_resumed_run_samples_no_step_twice() -> None:
    guard, _ = train(popping, {"watch": {"every": 5}})
    state = guard.state_dict()
    again, _ = train(popping, {"watch": {"every": 5}})
    again.load_state_dict(state)
    assert again.watching.state_dict() == guard.watching.state_dict()
    assert guard.watching.state_dict()["interval"] >= 0


@pytest.mark.parametrize("factor", [1e-7, 1e6])
def test_the_gradients_of_fp32_are_not_rounded_to_half(factor: float) -> None:
    model = nn.Linear(8, 4).half()
    optimizer = hg.MasterWeights(torch.optim.SGD(model.parameters()))
    guard = hg.Guard(model, optimizer, {"precision": "fp16-weights", "heal": {}})

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch).float().square() * factor).mean()

    batches = StepBatches(micro_batches=[guard._micro_batch(loss_fn, torch.randn(4, 8), None)])
    runner = guard._healing._bad_step(batches)._runner
    found = runner.gradients(runner.in_fp32())
    assert found.finite
    assert all(value is not None and (value != 0).any() for value in found.values)


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return (out * out).sum().float()


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(-1, keepdim=True) / 256.0


def squaring() -> nn.Sequential:
    first = nn.Linear(4, 4)
    nn.init.constant_(first.weight, 80.0)
    return nn.Sequential(first, Squares())


def line_of(function: Any, text: str, **more: Any) -> LineIsland:
    source, first = inspect.getsourcelines(function)
    index = next(number for number, code in enumerate(source) if text in code)
    return LineIsland(file=__file__, line=first + index, code=source[index].strip(), **more)


def test_lines_of_a_plan_are_applied_in_their_modules_and_others_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (line_of(Squares.forward, "x * x", within="Squares"), line_of(squares, "out * out"))
    PrecisionPlan(precision="fp16-mixed", lines=lines).save(tmp_path / "plan.yaml")
    model = squaring()
    config = {"plan": str(tmp_path / "plan.yaml")}
    guard = hg.Guard(model, torch.optim.SGD(model.parameters()), config)
    x = torch.ones(2, 4)
    for _ in range(2):
        with guard.autocast():
            out = model(x)
            loss = out.mean()
        guard.backward(loss)
        guard.update()
    assert out.dtype is torch.float32
    assert out.isfinite().all()
    assert caplog.text.count("outside the modules of this model") == 1


@pytest.mark.parametrize("checkpointed", [False, True])
def test_apply_plan_runs_a_line_in_its_module_and_again_when_it_is_recomputed(
    checkpointed: bool,
) -> None:
    model = squaring()
    plan = PrecisionPlan(lines=(line_of(Squares.forward, "x * x", within="Squares"),))
    hg.apply_plan(model, plan)
    x = torch.ones(2, 4)
    with torch.autocast("cpu", torch.float16):
        out = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
    assert out.isfinite().all()
    out.sum().backward()
    torch.testing.assert_close(out.detach(), nn.Sequential(*model)(x).detach(), rtol=1e-3, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_line_of_a_plan_is_found_in_another_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    source, first = inspect.getsourcelines(squares)
    here = Path(__file__)
    monkeypatch.chdir(here.parents[3])
    elsewhere = Path("/home/somebody/checkout", *here.parts[-4:])
    line = LineIsland(file=str(elsewhere), line=first + 2, code=source[2].strip())
    assert LineIslands([line])._places == {(str(here), first + 2): "fp32"}


@dataclass
class Sample:
    """A batch that is neither a mapping nor a sequence."""

    x: Tensor
    y: Tensor


def of_sample(model: nn.Module, batch: Sample) -> Tensor:
    return cross_entropy(model(batch.x).float(), batch.y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_batch_is_healed_and_stays_half(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(16, 32), RmsNorm(), nn.Linear(32, 4))
    config = {"watch": {"every": 5}, "heal": {}, "scale": {"init": 1024.0}}
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    batches = [Sample(batch["x"].to(dtype), batch["y"]) for batch in loud_batches(6)]
    for batch in batches:
        guard.step(of_sample, batch)
    assert is_island(model[1])
    assert "cannot be run in FP32" not in caplog.text
    assert all(batch.x.dtype is dtype for batch in batches)


def test_a_plan_with_lines_says_what_apply_plan_leaves_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    lines = tuple(LineIsland(file="train.py", line=n, code="x = y / z") for n in range(1, 6))
    assert hg.apply_plan(model, PrecisionPlan(islands=(Island(module="1"),))) == ["1"]
    assert not caplog.messages
    assert hg.apply_plan(model, PrecisionPlan(lines=lines)) == []
    [text] = caplog.messages
    for part in (
        "5 lines train.py:1 (x = y / z)",
        "and 2 more",
        "so they stay in 16-bit precision",
        "'plan'",
        "step(",
    ):
        assert part in text
