"""The cost of agreement: one collective of at most 64 bytes per step, for 2 ranks and for 16,384."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.support.programs import run_python

pytestmark = pytest.mark.slow
KINDS = ["None 1", "None 3", "1.0 1", "1.0 3"]  # clipping and accumulation


@cache
def counted(engine: str, ranks: int) -> Any:
    printed = run_python("-m", "tests.dist.count_collectives", engine, str(ranks))
    return json.loads(printed.splitlines()[-1])


def ours(engine: str, ranks: int, kind: str) -> list[list[int]]:
    """Return the bytes of the collectives that a guarded step adds to a bare one."""
    found = counted(engine, ranks)[kind]
    extra = []
    for with_us, without in zip(found["guarded"], found["bare"], strict=True):
        rest = [tuple(call) for call in with_us]
        for call in without:
            rest.remove(tuple(call))  # everything that the bare loop sends is still sent, once
        extra.append([size for _, size in rest])
    return extra


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_one_small_collective_a_step(engine: str, kind: str) -> None:
    extra = ours(engine, 2, kind)
    assert all(len(step) == 1 for step in extra)
    assert max(size for [size] in extra) <= 64


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_for_any_number_of_ranks(kind: str) -> None:
    few, some, many = (ours("ddp", ranks, kind) for ranks in (2, 128, 16384))
    assert few == some == many == [[24], [8], [24], [8]]  # every second step carries the checksum


def test_memory_does_not_grow_with_ranks() -> None:
    """Python's own caches vary by a few kilobytes; an entry per rank would take 8 bytes or more."""
    few, many = (counted("ddp", ranks)["None 1"]["held"] for ranks in (2, 16384))
    assert abs(many - few) < 16384  # less than one byte per rank
