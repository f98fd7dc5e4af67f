"""Rows are read in order, a fixed number of steps late, and none is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfguard.guard.stepping.gate import PendingRows

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.on_standin
@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_a_row_arrives_lag_steps_later(lag: int) -> None:
    box: PendingRows[int] = PendingRows(lag)
    for step in range(10):
        box.push(torch.tensor([float(step), 0.5]), step)
        due = list(box.pop_due())
        assert due == ([([step - lag, 0.5], step - lag)] if step >= lag else [])
    rest = list(box.pop_due(everything=True))
    assert [letter for _, letter in rest] == list(range(10 - lag, 10))
    assert list(box.pop_due(everything=True)) == []


@pytest.mark.on_standin
@given(st.integers(0, 4), st.lists(st.sampled_from(["post", "collect", "all"]), max_size=40))
def test_everything_arrives_once_and_in_order(lag: int, calls: list[str]) -> None:
    box: PendingRows[int] = PendingRows(lag)
    posted, arrived = 0, []
    for call in calls:
        if call == "post":
            box.push(torch.tensor([float(posted)]), posted)
            posted += 1
            continue
        for values, letter in box.pop_due(everything=call == "all"):
            assert values == [float(letter)]
            arrived.append(letter)
        assert arrived == list(range(len(arrived)))
        assert len(arrived) == posted if call == "all" else len(arrived) >= posted - lag
    arrived += [letter for _, letter in box.pop_due(everything=True)]
    assert arrived == list(range(posted))


@pytest.mark.on_standin
def test_numbers_that_are_not_finite_travel_too() -> None:
    box: PendingRows[str] = PendingRows(0)
    box.push(torch.tensor([float("nan"), float("inf")]), "x")
    [(values, letter)] = box.pop_due()
    assert values[0] != values[0]
    assert values[1] == float("inf")
    assert letter == "x"
