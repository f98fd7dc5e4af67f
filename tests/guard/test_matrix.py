"""Twelve loops by 20 optimizers by five faults: bitwise or refused, with no third outcome.

``tests.support.matrix`` has the loops, the optimizers and the references. CI tries every loop with every
optimizer, each with one fault. ``scripts/soak matrix`` tries all 1,200 cells and counts the outcomes;
``scripts/soak matrix NAME ...`` tries those whose loop or optimizer has one of the names.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import halfguard as hg
from halfguard.errors import UsageError
from tests.support.matrix.cells import (
    BITWISE,
    FAULTS,
    GROWTH_INTERVAL,
    REFUSED,
    SCALE,
    Fault,
    expected_verdict,
    judge,
    sampled_cells,
)
from tests.support.matrix.optimizers import NEEDS_CLOSURE, OPTIMIZERS, names_in_torch
from tests.support.matrix.shapes import SHAPES, Shape

pytestmark = pytest.mark.usefixtures("seed")

FAST = 4  # one cell in four: each loop meets every fault, each optimizer three of them


def cell(shape: str, optimizer: str, fault: Fault) -> Any:
    marks: list[Any] = []
    others = (3 * list(SHAPES).index(shape) + list(OPTIMIZERS).index(optimizer)) % FAST
    if others or shape == "compiled":  # the compiler takes seconds
        marks.append(pytest.mark.slow)
    return pytest.param(shape, optimizer, fault, marks=marks, id=f"{shape}-{optimizer}-{fault}")


@pytest.mark.parametrize(
    ("shape", "optimizer", "fault"), [cell(*chosen) for chosen in sampled_cells()]
)
def test_bitwise_or_refused(shape: str, optimizer: str, fault: Fault) -> None:
    if OPTIMIZERS[optimizer].missing:
        pytest.skip(OPTIMIZERS[optimizer].missing)
    assert judge(shape, optimizer, fault) == expected_verdict(shape, fault)


def test_every_optimizer_of_torch_is_in_the_matrix() -> None:
    tried = {case.name for case in OPTIMIZERS.values() if case.module == "torch.optim"}
    assert set(names_in_torch()) <= tried | NEEDS_CLOSURE
    model = nn.Linear(4, 1)
    for name in NEEDS_CLOSURE:
        with pytest.raises(UsageError, match="needs a closure"):
            hg.Guard(model, getattr(torch.optim, name)(model.parameters()))


@pytest.mark.parametrize(
    ("shape", "fault", "config", "message"),
    [
        (
            "step",
            "healthy",
            {"scale": {"init": SCALE, "growth_interval": GROWTH_INTERVAL + 1}},
            ".growth",
        ),
        ("accumulated", "healthy", {"clip": {"max_norm": 0.2}}, "values differ"),
        ("step", "NaN batch", {"skip": {"max_consecutive": 1}}, "TrainingHaltedError"),
        ("step", "retry", {"skip": {"on_nonfinite": "skip"}}, "the actions are"),
        ("step", "rollback", {"recovery": {"every": 3}}, "values differ"),
    ],
)
def test_a_third_outcome_is_noticed(
    shape: str, fault: Fault, config: dict[str, Any], message: str
) -> None:
    assert message in judge(shape, "AdamW", fault, config)


@patch("halfguard.guard.stepping.buffers.Buffers.restore", lambda _: None)
def test_statistics_that_are_not_put_back_are_noticed() -> None:
    assert ".model.norm.running_mean" in judge("context made once", "AdamW", "NaN batch", {})


@patch("halfguard.guard.recovery.recovery._LR_CUT", 0.25)
def test_another_cut_of_the_rate_is_noticed() -> None:
    assert "values differ" in judge("scheduler and EMA", "AdamW", "rollback")


def test_a_refusal_after_weights_have_changed_is_a_third_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Shape):
        def prepare(self, iteration: int) -> None:
            if iteration == 2:
                raise UsageError("too late", cure="none")

    monkeypatch.setitem(SHAPES, "late", Late)
    assert "after weights had changed" in judge("late", "SGD", "healthy")


def test_a_wrapper_that_is_no_optimizer_is_guarded_without_a_list() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    model = nn.Linear(4, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper: Any = schedulefree.ScheduleFreeWrapper(inner)
    wrapper.train()
    guard = hg.Guard(model, wrapper, {"scale": {"init": 8.0}})
    assert guard.step(lambda m, x: m(x).float().square().mean(), torch.randn(2, 4)).applied


def soak(names: list[str]) -> int:
    """Try all cells, or those with one of these names; return how many are not as expected."""
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    missing = {name: case.missing for name, case in OPTIMIZERS.items() if case.missing}
    pairs = [
        (shape, optimizer)
        for shape, optimizer in itertools.product(SHAPES, OPTIMIZERS)
        if optimizer not in missing and (not names or {shape, optimizer} & set(names))
    ]
    if not pairs:
        print(f"loops: {', '.join(SHAPES)}; optimizers: {', '.join(OPTIMIZERS)}")
        return 1
    counts: Counter[tuple[str, Fault, str]] = Counter()
    unexpected = 0
    total = len(pairs) * len(FAULTS)
    for number, ((shape, optimizer), fault) in enumerate(itertools.product(pairs, FAULTS), 1):
        verdict = judge(shape, optimizer, fault)
        if verdict != expected_verdict(shape, fault):
            unexpected += 1
            print(f"\r{shape}, {optimizer}, {fault}: {verdict}")
        known = verdict if verdict in {BITWISE, REFUSED} else "other"
        counts[shape, fault, known] += 1
        print(f"\r{number}/{total} cells", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for key, number in counts.items():
        print(*key, number, sep=" | ")
    print(f"{counts.total()} cells")
    for optimizer, reason in missing.items():
        print(f"not tried: {optimizer} ({reason})")
    return unexpected


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(1 if soak(sys.argv[1:]) else 0)
