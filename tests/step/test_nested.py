"""The walk over nested values: order, names, and bounds."""

from __future__ import annotations

from collections import UserDict
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from halfguard.step.nested import (
    MAX_NODES,
    PlainValues,
    attributes,
    batch_leaves,
    iter_leaves,
    named_batch_leaves,
    text_of,
)


class Base:
    __slots__ = ("first", "unset")

    def __init__(self) -> None:
        self.first = 1


class Child(Base):
    def __init__(self) -> None:
        super().__init__()
        self.second = 2

    @property
    def third(self) -> int:
        raise AssertionError("a property is not called")


def test_attributes_of_slots_and_of_the_dict() -> None:
    assert dict(attributes(Child())) == {"first": 1, "second": 2}
    assert dict(attributes(Base())) == {"first": 1}
    assert dict(attributes(object())) == {}


def test_names_lead_to_a_leaf() -> None:
    batch = {"a": [SimpleNamespace(b=torch.ones(1))], 3: "x", "c": UserDict(d=(1.5, 2))}
    found = {
        names: leaf
        for names, leaf in named_batch_leaves(batch)
        if not isinstance(leaf, torch.Tensor)
    }
    assert found == {(): "x", ("c", "d"): PlainValues((1.5, 2))}
    assert [
        names for names, leaf in named_batch_leaves(batch) if isinstance(leaf, torch.Tensor)
    ] == [("a", "b")]
    assert sorted(path for path, _ in iter_leaves({"a": [1, {"b": 2}], "c": (3,)})) == [
        "a.0",
        "a.1.b",
        "c.0",
    ]


def test_plain_values_of_a_batch_come_one_by_one() -> None:
    assert list(batch_leaves([1, "a", None, 2.5])) == [1, "a", None, 2.5]
    assert list(batch_leaves(list(range(1000)))) == list(range(1000))


def test_a_shared_container_is_opened_once_and_a_shared_leaf_is_yielded_again() -> None:
    leaf: Any = torch.ones(1)
    inner = [leaf]
    assert len(list(batch_leaves([inner, inner, leaf]))) == 2


def test_large_containers_take_turns() -> None:
    wide: list[Any] = [[object()] for _ in range(10 * MAX_NODES)]
    batch = {"wide": wide, "deep": {"deeper": {"deepest": "found"}}}
    assert any(leaf == "found" for leaf in batch_leaves(batch))
    assert sum(1 for _ in batch_leaves(batch)) < MAX_NODES


def test_containers_that_change_or_raise_are_left() -> None:
    growing: dict[int, Any] = {key: [0] for key in range(100)}
    leaves = batch_leaves([growing, 1])
    first = next(leaves)
    growing[1000] = 1
    assert 1 in chain([first], leaves)


def test_text_of_an_object_that_raises() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    assert text_of(Odd()) == "a Odd"
    assert text_of({"a": 1}) == "{'a': 1}"
