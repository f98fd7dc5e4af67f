"""A healthy run on several ranks is bitwise equal to the one without the guard."""

from __future__ import annotations

import pytest
import torch

from tests.dist import jobs
from tests.support.pairs import parametrize_pairs
from tests.support.ranks import Group


@parametrize_pairs(
    engine=["ddp", "fsdp2", pytest.param("hsdp", marks=pytest.mark.slow)],
    optimizer=["sgd", "adamw", "adamw-fused"],
    clip=[None, 0.5],
    accumulate=[1, 3],
)
def test_bitwise_the_bare_loop(
    ranks: Group,
    engine: jobs.Engine,
    optimizer: str,
    clip: float | None,
    accumulate: int,
) -> None:
    group = ranks(4 if engine == "hsdp" else 2)
    bare = group.run(jobs.healthy, engine, False, optimizer, clip, accumulate, 8)
    guarded = group.run(jobs.healthy, engine, True, optimizer, clip, accumulate, 8)
    for (weights, scale), (expected, expected_scale) in zip(guarded, bare, strict=True):
        assert scale == expected_scale
        assert [n for n in expected if not torch.equal(weights[n], expected[n])] == []
