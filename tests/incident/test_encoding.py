"""Structures survive the way to JSON and back; what cannot is named."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfguard.errors import RecordError
from halfguard.incident import decode
from halfguard.incident.encoding import encode
from tests.support.models import differences

leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats()
    | st.lists(st.floats(width=16), max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float16))
)  # fmt: skip
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        bits = torch.int16
        return isinstance(right, torch.Tensor) and torch.equal(left.view(bits), right.view(bits))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=True)
        return type(left) is type(right) and all(same(a, b) for a, b in pairs)
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


@settings(max_examples=200, deadline=None)
@given(structures)
def test_round_trip_through_json(structure: Any) -> None:
    body, tensors, problems = encode(structure, "batch")
    assert not problems
    assert same(structure, decode(json.loads(json.dumps(body, allow_nan=False)), tensors))


@dataclass
class Graph:
    nodes: torch.Tensor
    name: str


def test_objects_come_back_as_namespaces_with_their_fields() -> None:
    pair = namedtuple("pair", ["first", "second"])
    batch = {
        "graph": Graph(torch.arange(3), "g"),
        "pair": pair(1, torch.ones(2)),
        "ordered": OrderedDict(x=torch.zeros(1)),
    }
    body, tensors, problems = encode(batch, "batch")
    again = decode(json.loads(json.dumps(body)), tensors)
    assert not problems
    assert again["graph"].name == "g"
    assert differences(again["graph"].nodes, torch.arange(3)) == []
    assert again["pair"].second.tolist() == [1, 1]
    assert again["ordered"]["x"].tolist() == [0]
    assert sorted(tensors) == ["batch.graph.nodes", "batch.ordered.x", "batch.pair.second"]


def test_what_cannot_be_kept_is_named_and_refused_on_the_way_back() -> None:
    body, _, problems = encode({"fine": 1, "open": open}, "batch")  # a function
    assert problems == ["batch.open: a builtin_function_or_method cannot be kept"]
    with pytest.raises(RecordError, match="lacks a part of the batch"):
        decode(body, {})


@pytest.mark.parametrize(
    "body",
    [
        {"type": "tensor", "name": "missing"},
        {"type": "dict", "items": 3},
        {"type": "dict", "items": [["a"]]},
        {"type": "namedtuple", "fields": [["def", 1]]},
        {"type": "object", "fields": None},
        {"type": "exec", "code": "1"},
        {"type": []},
        {},
        [1, 2],
    ],
)
def test_damaged_structures_are_refused(body: Any) -> None:
    with pytest.raises(RecordError):
        decode(body, {})


def test_depth_is_bounded_both_ways() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert encode(deep, "batch")[2]
    body: Any = 1
    for _ in range(100):
        body = {"type": "list", "items": [body]}
    with pytest.raises(RecordError, match="too deeply"):
        decode(body, {})
