"""Lost updates against exact rounding, one weight at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from halfguard.formats import for_dtype
from halfguard.numerics.lost_updates import UpdateMargins, count_lost, freezing_step, joined
from halfguard.numerics.tensor_rows import lay_out
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")


def drawn(dtype: torch.dtype, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return weights and updates of all sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(number, generator=generator)
    weights *= 2.0 ** torch.randint(-18, 4, (number,), generator=generator)
    updates = weights * torch.randn(number, generator=generator)
    updates *= 2.0 ** torch.randint(-16, -2, (number,), generator=generator)
    weights[::50], updates[::17] = 0.0, 0.0
    return weights.to(dtype), updates


def lost_updates(weights: list[Tensor], updates: list[Tensor]) -> list[UpdateMargins]:
    """Return what adding each of the updates to its weight does; all weights have one dtype."""
    (rows,), (change,) = lay_out(weights), lay_out(updates)
    return joined(rows.positions, [count_lost(rows, change.data, weights[0].dtype)]).margins()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_count_is_exact(dtype: torch.dtype) -> None:
    stored = for_dtype(dtype)
    pairs = [drawn(dtype, number, number) for number in (1, 300, 1000)]
    found = lost_updates([w for w, _ in pairs], [u for _, u in pairs])
    for (weights, updates), margins in zip(pairs, found, strict=True):
        moves = [
            (w, u)
            for w, u in zip(weights.double().tolist(), updates.double().tolist(), strict=True)
            if u
        ]
        lost = sum(not stored.update_survives(w, u) for w, u in moves)
        assert (margins.updates, margins.lost) == (len(moves), lost)


@each("factor", [1.0, 0.5, 0.25, 0.1, 4.0])
def test_the_share_at_another_rate_is_foretold(factor: float) -> None:
    weights, updates = drawn(torch.bfloat16, 20_000, 3)
    (now,) = lost_updates([weights], [updates])
    (later,) = lost_updates([weights], [updates * factor])
    assert now.share_lost_at(factor) == pytest.approx(later.share_lost, abs=0.02)


@pytest.mark.on_standin
def test_cost_does_not_depend_on_the_number_of_tensors() -> None:
    counts = []
    for number in (10, 500):
        weights = [torch.ones(100, dtype=torch.float16) for _ in range(number)]
        updates = [torch.full((100,), 1e-4) for _ in range(number)]
        with OpCounter() as counter:
            (rows,), (change,) = lay_out(weights), lay_out(updates)
            count_lost(rows, change.data, torch.float16)
        counts.append(counter.total)
        assert counter.host_syncs == 0
    assert counts[0] == counts[1]


def test_the_step_at_which_a_schedule_freezes_a_tensor() -> None:
    weights = torch.ones(1000, dtype=torch.bfloat16)
    (margins,) = lost_updates([weights], [torch.full((1000,), 2.0**-4)])
    assert margins.share_lost == 0
    rates = [2.0**-step for step in range(10)]  # lost below 2**-8: from a sixteenth on
    step = freezing_step(margins, rates)
    assert step is not None
    assert step == pytest.approx(5, abs=1)
    assert freezing_step(margins, [1.0] * 100) is None
    assert freezing_step(margins, [1.0, 0.0]) == 1
    assert freezing_step(UpdateMargins(0, ()), rates) is None
    assert freezing_step(margins, []) is None
    assert math.isclose(margins.share_lost_at(0.0), 1.0)
