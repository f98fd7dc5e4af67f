"""FP16 gradients without a scaler: told if they are too small from the beginning, and never otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from halfguard.investigation.bus import BackwardCall, HookBus
from halfguard.investigation.detectors import SmallGradients
from halfguard.investigation.passes import Made, Misused

SMALL, LARGE = 1e-9, 1.0


def run(
    factors: Iterable[float],
    *,
    scaled: bool = False,
    scaler: object = None,
    sparse: bool = False,
    dtype: torch.dtype | None = torch.float16,
) -> tuple[Misused, ...]:
    """Train with losses of these sizes under autocast, and return what the sensor tells."""
    bus = HookBus()
    bus.scaler = scaler
    sensor = SmallGradients(bus)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        words = nn.Embedding(8, 8, sparse=sparse)
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        parameters = [*words.parameters(), *layers.parameters()]
        for factor in factors:
            kind = dtype or torch.float16
            with torch.autocast("cpu", dtype=kind, enabled=dtype is not None) as region:
                sensor.on_autocast_entered(region)
                out = layers(words(torch.arange(16) // 2))
            loss = (out * factor).float().mean()
            loss.backward()
            sensor.look(BackwardCall([loss], [loss], scaled, accumulates=True), _take(parameters))
            bus.backward += 1
    return tuple(sensor.found(Made(), ""))


def _take(parameters: list[nn.Parameter]) -> list[Tensor]:
    taken = [p.grad for p in parameters if p.grad is not None]
    for parameter in parameters:
        parameter.grad = None
    return taken


def test_gradients_that_are_too_small_from_the_beginning_are_told() -> None:
    (told,) = run([SMALL] * 7)
    assert told.kind == "no scaler"
    assert told.place is not None
    assert told.backward == 3  # the middle of the run is tried in FP32
    assert told.sizes == (64, 64, 8, 8, 1)
    assert len(told.norms) == len(told.sizes)


def test_gradients_that_are_small_in_the_first_batch_too_are_told() -> None:
    assert run([LARGE, *[SMALL] * 6])  # the first one may be unlike the others


@pytest.mark.parametrize(
    "factors",
    [
        [LARGE] * 7,
        [LARGE] * 4 + [SMALL] * 3,  # the model has learnt
        [SMALL, LARGE, *[SMALL] * 5],
        [SMALL, SMALL, SMALL, LARGE, SMALL, SMALL, SMALL],
        [SMALL] * 2,  # too few to tell
        [],
    ],
)
def test_other_gradients_are_not_told(factors: list[float]) -> None:
    assert run(factors) == ()


def test_a_scaler_that_is_there_is_respected() -> None:
    assert run([SMALL] * 7, scaled=True) == ()
    assert run([SMALL] * 7, scaler=torch.amp.GradScaler("cpu")) == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_small_gradients_are_told_under_fp16_autocast_alone(dtype: torch.dtype | None) -> None:
    assert run([SMALL] * 7, dtype=dtype) == ()


def test_sparse_gradients_are_left_to_the_others() -> None:
    (told,) = run([SMALL] * 7, sparse=True)
    assert told.sizes == (64, 8, 8, 1)
    assert run([LARGE] * 7, sparse=True) == ()
