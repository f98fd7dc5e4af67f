"""Ten jobs that overflow in half: a minimal plan for each, found in few trials, that follows FP32."""

from __future__ import annotations

import math

import pytest
import torch
from examples.overflowing import JOBS, job
from torch import Tensor, nn

from halfguard.errors import NoPlanError, UsageError
from halfguard.precision_names import Precision
from halfguard.probing.island_trials import IslandTrial, IslandTrials
from halfguard.probing.plan_search import plan
from halfguard.records.plan import AnyIsland, Island, PrecisionPlan
from halfguard.workload import Workload, load
from tests.support.devices import place

pytestmark = pytest.mark.usefixtures("device")

STEPS = 24
ATTENTION = "mixed = torch.softmax(q @ k.transpose(-2, -1), -1) @ v"
EXPECTED = {  # modules, with a star if they are rescaled, and lines
    "t5": {"*blocks.1.wo"},
    "attention": {ATTENTION},
    "rms_norm": {"1"},
    "logits": {"*head"},
    "graph": {"message = self.message(x)[:, self.source]"},  # its backward pass adds up in half
    "detector": {"return torch.exp(size).to(size.dtype)"},
    "deep_residual": {"*layers.*"},
    "router": {"square = score * score + self.floor"},
    "vae": {"8"},
    "transformer": {"*blocks.3.wo", ATTENTION},
}


def named(island: AnyIsland) -> str:
    name = island.module if isinstance(island, Island) else island.code
    return f"*{name}" if island.kind == "rescaled" else name


def loaded(name: str) -> Workload:
    """Return a job of the examples on the device of the test."""
    workload = load(f"examples/overflowing.py:{name}", 0)
    model, lr = place(workload.model), workload.optimizer.defaults["lr"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)  # moved parameters are new ones
    batches = place(workload.batches)
    return Workload(model, workload.loss, batches, optimizer, remake=lambda: loaded(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_the_plan_is_minimal_follows_fp32_and_is_found_in_few_trials(name: str) -> None:
    workload = loaded(name)
    before = [p.clone() for p in workload.model.parameters()]
    seen: list[IslandTrial] = []
    found = plan(workload, steps=STEPS, watch=seen.append)
    evidence = found.evidence
    assert evidence is not None
    islands: list[AnyIsland] = [*found.islands, *found.lines]
    assert set(map(named, islands)) == EXPECTED[name]
    assert evidence.deviation <= 0.01
    assert evidence.trials == len(seen) <= 3 * math.log2(evidence.modules) * len(islands)
    verdicts = {frozenset(map(named, trial.islands)): trial.passed for trial in seen}
    everything = frozenset(map(named, islands))
    assert verdicts[everything]
    digits = {named(island) for island in islands if "of the error" in island.reason}
    assert not any(verdicts[everything - {island}] for island in everything - digits)
    assert all(island.reason.startswith("Without it ") for island in islands)
    after = workload.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_plan_that_another_process_applies_gives_the_same_run() -> None:
    workload = loaded("t5")
    found = plan(workload, steps=8)
    read = PrecisionPlan.from_yaml(found.to_yaml())
    assert read == found
    again = IslandTrials(workload, Precision.FP16_MIXED, steps=8, tolerance=0.01)
    assert again.of(read.islands).run.final_loss() == found.evidence.loss


def healthy(seed: int) -> Workload:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    return job(seed, model, (16,))


def test_a_healthy_model_needs_no_island_and_one_trial(seed: object) -> None:
    found = plan(healthy(0), steps=8)
    assert found.islands == ()
    assert found.evidence.trials == 1
    assert found.loss_scale.low <= found.loss_scale.best <= found.loss_scale.high


class Spread(nn.Module):
    """Variance by moments: the difference of two squares that are nearly equal."""

    def forward(self, x: Tensor) -> Tensor:
        moments = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
        return x * moments


@pytest.mark.parametrize("tolerance", [0.01, 10.0])  # whether the loss follows FP32 or not
def test_a_line_that_loses_digits_is_an_island_although_the_run_is_finite(
    tolerance: float, seed: object
) -> None:
    first = nn.Linear(16, 32)
    nn.init.constant_(first.bias, 8.0)
    model = nn.Sequential(first, Spread(), nn.Linear(32, 4))
    found = plan(job(0, model, (16,)), steps=4, precision="bf16-mixed", tolerance=tolerance)
    lines = [line for line in found.lines if "x * x" in line.code]
    assert [line.within for line in lines] == ["Spread"]
    assert "of the error" in lines[0].reason


@pytest.mark.on_standin
def test_bf16_needs_no_island_where_fp16_does() -> None:
    workload = loaded("t5")
    assert plan(workload, precision="bf16-mixed", steps=8).islands == ()


def test_a_loss_that_overflows_by_itself_has_no_plan(seed: object) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        total: Tensor = model(batch[0]).half().abs().sum() * 1e5
        return total.float()

    workload = healthy(0)
    workload.loss = loss
    # In FP32 it is no better: this loss casts by hand.
    with pytest.raises(UsageError, match="not finite in FP32 either"):
        plan(workload, steps=2)
    workload.loss = lambda model, batch: _product(model(batch[0]))
    with pytest.raises(NoPlanError, match=r"No set of islands helps: .*test_plans\.py"):
        plan(workload, steps=2)


def _product(out: Tensor) -> Tensor:
    """A matrix product outside of the model, which autocast lowers whatever the model returns."""
    return (out * 1e3 @ (out * 1e3).T).mean()


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"tolerance": 0.0}, {"precision": "fp32"}, {"precision": "half"}]
)
def test_arguments_that_mean_nothing(wrong: dict[str, object], seed: object) -> None:
    with pytest.raises(UsageError):
        plan(healthy(0), **wrong)  # type: ignore[arg-type]
