"""Count the operations and host syncs that a healthy guarded step adds to the bare loop."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.guard.policy import StepLimits
from halfguard.guard.step_batches import MicroBatch, StepBatches
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.guard.stepping.stepper import Stepper
from tests.support.cases import each
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device
from tests.support.models import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("device")

AT_MOST = 25
# A fused optimizer leaves the answer on the device: buffers are chosen there, and statistics checked.
AT_MOST_ON_DEVICE = 35
LIMITS = {"clip": {"max_norm": 1.0}, "skip": {"max_grad_norm": 100.0}}
SPIKE = LIMITS | {"spike": {"sigma": 1000.0}}


class Many(nn.Module):
    """A model with any number of parameter tensors, with or without BatchNorm."""

    def __init__(self, tensors: int, *, norm: bool) -> None:
        super().__init__()
        each = 4 if norm else 2
        layers = (
            [nn.Linear(4, 4), nn.BatchNorm1d(4)] if norm else [nn.Linear(4, 4)]
            for _ in range(tensors // each)
        )
        self.layers = nn.ModuleList(nn.Sequential(*layer) for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 1e-3 * layer(x)
        return x


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def endless_batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    few = [torch.randn(2, 8, 4, generator=generator).unbind() for _ in range(8)]
    return itertools.cycle((x, y) for x, y in few)


def counted(step: Callable[[], object]) -> OpCounter:
    """Count the operations of a step in mid-run; the first steps create optimizer state and limits."""
    for _ in range(4):
        step()
    counter = OpCounter()
    with counter:
        step()
    return counter


def bare(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    accumulate: int = 1,
    clip: bool = True,
    hosted: GuardScaler | None = None,
) -> OpCounter:
    """Count a step by hand, with torch's scaler or with that of a hosted guard."""
    scaler = hosted or torch.amp.GradScaler(chosen_device().type, init_scale=8.0)
    batches, repeat = endless_batches(), partial(loss_fn, model)

    def step() -> None:
        for _ in range(accumulate):
            batch = next(batches)
            if hosted is not None and hosted.guard is not None:
                hosted.guard.begin(batch, repeat=repeat)
            with torch.autocast(chosen_device().type, torch.float16):
                loss = loss_fn(model, batch)
            scaler.scale(loss if accumulate == 1 else loss / accumulate).backward()
        scaler.unscale_(optimizer)
        if clip:
            clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return counted(step)


def guarded(
    model: nn.Module, optimizer: Optimizer, config: Mapping[str, Any], run_dir: Path | None = None
) -> OpCounter:
    guard = Guard(model, optimizer, {"scale": {"init": 8.0}} | dict(config), run_dir=run_dir)
    batches = endless_batches()
    outcomes: list[StepOutcome] = []

    def step() -> None:
        outcomes.extend(guard.step(loss_fn, next(batches)) for _ in range(guard.config.accumulate))

    counter = counted(step)
    assert outcomes[-1].applied
    assert guard.summary().success_rate == 1
    return counter


def added(
    tensors: int, optimizer: str, config: Mapping[str, Any] = LIMITS, *, norm: bool = False
) -> tuple[int, int]:
    """Return the operations and host syncs that the guard adds."""
    models = [Many(tensors, norm=norm) for _ in range(2)]
    make = OPTIMIZERS[optimizer]
    base = bare(
        models[0],
        make(models[0].parameters()),
        accumulate=config.get("accumulate", 1),
        clip="clip" in config,
    )
    ours = guarded(models[1], make(models[1].parameters()), config)
    return ours.total - base.total, ours.host_syncs - base.host_syncs


@pytest.mark.on_standin
@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_added_operations_are_few_and_do_not_depend_on_the_number_of_tensors(
    optimizer: str, norm: bool
) -> None:
    few, few_syncs = added(20, optimizer, norm=norm)
    many, many_syncs = added(2000, optimizer, norm=norm)
    on_device = optimizer == "adamw-fused" and (norm or chosen_device().type != "cpu")
    assert few == many <= (AT_MOST_ON_DEVICE if on_device else AT_MOST)
    assert few_syncs == many_syncs == 0


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@each("optimizer", OPTIMIZERS)
@each(
    "config",
    [
        {"clip": {"max_norm": 1.0}},
        {"clip": {"max_norm": 1.0}, "accumulate": 4},
        {"clip": {"max_norm": 1.0}, "skip": {"on_nonfinite": "raise"}},
    ],
)
def test_other_configurations(optimizer: str, config: dict[str, Any]) -> None:
    few, few_syncs = added(20, optimizer, config)
    many, many_syncs = added(200, optimizer, config)
    assert few == many
    # For every further micro-batch the input is checked (norms, stack, maximum) and the loss is saved.
    assert few <= AT_MOST + 6 * (config.get("accumulate", 1) - 1)
    # Stopping at the first bad step needs the answer at once; a fused optimizer alone does not.
    waits = optimizer == "adamw-fused" and config.get("skip") is not None
    assert few_syncs == many_syncs == int(waits)


@pytest.mark.on_standin
@pytest.mark.usefixtures("seed")
def test_retry_costs_a_fused_optimizer_one_host_sync_and_others_none() -> None:
    config = {"clip": {"max_norm": 1.0}, "skip": {"on_nonfinite": "retry_fp32"}}
    syncs = {name: added(20, name, config)[1] for name in OPTIMIZERS}
    assert syncs == {"sgd": 0, "adamw-foreach": 0, "adamw-fused": 1}


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.on_standin
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@patch("halfguard.guard.spikes.WARM_UP", 2)
def test_limits_that_follow_the_run_are_sent_to_the_device_each_step(optimizer: str) -> None:
    fixed, _ = added(20, optimizer, norm=True)
    few, few_syncs = added(20, optimizer, SPIKE, norm=True)
    many, many_syncs = added(200, optimizer, SPIKE, norm=True)
    sent = 2 if chosen_device().type == "cpu" else 3  # the limits are made, copied and split
    assert few == many <= fixed + sent
    assert few_syncs == many_syncs == 0


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_clipping_the_norms_cost_a_few_operations_for_all_tensors(optimizer: str) -> None:
    few, few_syncs = added(20, optimizer, {})
    many, many_syncs = added(200, optimizer, {})
    assert few == many <= AT_MOST
    assert few_syncs == many_syncs == 0


@pytest.mark.on_standin
@pytest.mark.usefixtures("seed")
def test_a_journal_asks_nothing_of_the_device_but_the_state_of_its_generator(
    tmp_path: Path,
) -> None:
    models = [Many(20, norm=False) for _ in range(2)]
    without = guarded(models[0], OPTIMIZERS["adamw-fused"](models[0].parameters()), LIMITS)
    with_journal = guarded(
        models[1], OPTIMIZERS["adamw-fused"](models[1].parameters()), LIMITS, tmp_path
    )
    assert with_journal.total <= without.total + 1
    assert with_journal.host_syncs == without.host_syncs == 0


@pytest.mark.on_standin
@pytest.mark.usefixtures("between_looks")
def test_a_step_with_a_fused_optimizer_needs_no_number_from_the_device() -> None:
    """Fake tensors have no values; reading one raises an error."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Many(20, norm=True)
        optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
        config = GuardConfig.load(SPIKE)
        stepper, batch = Stepper(model, [optimizer], config), (torch.randn(8, 4), torch.randn(8, 4))
        for _ in range(2):
            stepper.begin(late=False)
            batches = StepBatches()
            with torch.autocast(chosen_device().type, torch.float16):
                loss = loss_fn(model, batch)
            stepper.backward(loss, MicroBatch(batch), batches)
            row, gradients = stepper.examine([optimizer], batches)
            refused = stepper.gate.refused(row, StepLimits())
            stepper.apply([optimizer], gradients, refused)
            assert row.shape == (5,)  # the fifth checks the running statistics
        with pytest.raises(Exception, match=r"(?i)data.dependent|_local_scalar_dense"):
            refused.item()


# -- a hosted guard beside torch's scaler


# A framework clips by a norm of its own, so norms are computed twice. Most of the rest is for BatchNorm.
AT_MOST_HOSTED = 30
RETRY = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@each("norm", [False, True])
@each("optimizer", ["adamw-foreach", "adamw-fused"])
def test_what_a_hosted_guard_adds_does_not_depend_on_the_number_of_tensors(
    optimizer: str, norm: bool
) -> None:
    added = []
    for tensors in (20, 200):
        models = [Many(tensors, norm=norm) for _ in range(2)]
        optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
        stock = bare(models[0], optimizers[0])
        scaler = GuardScaler(HostedGuard(models[1], optimizers[1], RETRY))
        hosted = bare(models[1], optimizers[1], hosted=scaler)
        added.append(hosted.total - stock.total)
        # A host asks at once whether the step was applied, so a fused optimizer waits as well.
        assert hosted.host_syncs - stock.host_syncs == (optimizer == "adamw-fused")
    assert added[0] == added[1] <= AT_MOST_HOSTED


# -- what a guard imports: the optional parts only when a configuration switches them on

LIMIT = 70  # modules of ours

STEPS = """
import json, sys
import halfguard

def loaded():
    return sorted(name for name in sys.modules if name.split(".")[0] == "halfguard")

halfguard.Guard
imported = loaded()

import torch

def step(config="default", **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = halfguard.Guard(model, optimizer, config, **options)
    assert guard.step(lambda model, x: model(x).float().sum() / 1000, torch.ones(1, 2)).applied
    guard.close()

step()
stepped = loaded()
step({"watch": {}, "heal": {}, "recovery": {}})
print(json.dumps([imported, stepped, loaded()]))
"""


@pytest.mark.slow
def test_a_default_guard_loads_few_modules() -> None:
    ran = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    imported, stepped, everything = json.loads(ran.stdout)
    assert len(imported) <= LIMIT, imported
    assert len(stepped) <= LIMIT, stepped
    optional = {
        f"halfguard.{name}" for name in ("guard.healing", "guard.recovery", "guard.watching")
    }
    optional |= {"halfguard.tracing", "halfguard.incident", "halfguard.hardware"}
    assert not optional & set(stepped)
    assert optional - {"halfguard.incident", "halfguard.hardware"} <= set(everything)
