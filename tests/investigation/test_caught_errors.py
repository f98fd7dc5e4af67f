"""Errors that a script catches in every step are counted; without them, tracing ends soon."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from halfguard.investigation import caught_errors
from halfguard.investigation.bus import HookBus
from halfguard.investigation.caught_errors import CaughtErrors
from halfguard.investigation.passes import Made, PassPlan, Target


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[CaughtErrors]:
    monkeypatch.setattr(caught_errors, "_CALLS", 4000)
    before, folder = sys.gettrace(), __file__.rpartition("/")[0]
    target = Target(name="train.py")
    plan = PassPlan(
        kind="inspect", target=target, folder=folder, base=folder, answer="", originals=(folder,)
    )
    yield CaughtErrors(HookBus(), plan)
    sys.settrace(before)


def step(*, fails: bool) -> None:
    with contextlib.suppress(RuntimeError):
        torch.ones(2) @ torch.ones(3 if fails else 2)


@pytest.mark.parametrize("fails", [True, False])
def test_tracing_ends_unless_errors_were_seen(errors: CaughtErrors, fails: bool) -> None:
    for _ in range(5000):
        step(fails=fails)
    assert (sys.gettrace() is not None) is fails
    assert [one.kind for one in errors.found(Made(), "")] == ["hidden error"] * fails


def test_errors_at_the_end_of_accumulation_are_told_if_fewer_steps_ran(
    errors: CaughtErrors,
) -> None:
    for _ in range(5):
        step(fails=True)
    errors.bus.backward, errors.bus.steps = 12, 1  # two micro-batches each
    assert [one.kind for one in errors.found(Made(), "")] == ["hidden error"]
    errors.bus.steps = 7  # five of twelve steps failed, and the others trained
    assert list(errors.found(Made(), "")) == []


def test_exceptions_by_which_torch_leaves_a_recomputation_are_no_errors(
    errors: CaughtErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caught_errors, "_CALLS", 10**9)  # the first checkpoint imports a lot
    x = torch.ones(2, requires_grad=True)
    for _ in range(8):
        checkpoint(lambda z: (z.exp() * 2)[:1], x, use_reentrant=False).sum().backward()
    errors.bus.backward = 8
    assert list(errors.found(Made(), "")) == []
