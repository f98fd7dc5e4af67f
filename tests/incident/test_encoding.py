"""Structures survive the way to JSON and back; what cannot is named."""

from __future__ import annotations

import copy
import json
import math
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from halfguard.errors import RecordError
from halfguard.incident import decode
from halfguard.incident.encoding import Encoder
from tests.support.cases import each
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


def encode(value: Any, name: str) -> tuple[Any, dict[str, torch.Tensor], list[str]]:
    encoder = Encoder()
    return encoder.encode(value, name), encoder.tensors, encoder.problems


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


@pytest.mark.slow
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


def test_what_cannot_be_kept_is_named_and_raises_when_it_is_used() -> None:
    body, _, problems = encode({"fine": 1, "open": open}, "batch")  # a function
    assert problems == ["batch.open: a builtin_function_or_method cannot be saved"]
    again = decode(json.loads(json.dumps(body)), {})
    assert again["fine"] == 1
    missing = copy.copy(again["open"])
    uses: list[Callable[[], Any]] = [
        lambda: missing("file"),
        lambda: missing.name,
        lambda: missing[0],
        lambda: list(missing),
        lambda: len(missing),
        lambda: torch.ones(2) * missing,
        lambda: float(missing),
    ]
    for use in uses:
        with pytest.raises(
            RecordError, match="does not contain the whole batch: a builtin_function"
        ):
            use()


ARRAYS = [
    np.arange(6.0, dtype=np.float32).reshape(2, 3),
    np.arange(6)[::-2],
    np.array(2.5),
    np.array([1, 2], dtype=">u2"),
    np.array([1 + 2j, 3], dtype=np.complex128),
    np.array([1 + 2j, 3], dtype=np.complex64),
    np.array([True, False]),
    np.broadcast_to(np.float16(1), (2, 3)),  # cannot be written to
    np.zeros((0, 3)),
    np.float32(1.5),
    np.int64(7),
    np.bool_(True),
]


@each("array", ARRAYS)
def test_numpy_comes_back_as_numpy(array: Any) -> None:
    body, tensors, problems = encode({"x": array}, "batch")
    assert not problems
    again = decode(json.loads(json.dumps(body)), tensors)["x"]
    assert type(again) is type(array)
    assert again.dtype == array.dtype.newbyteorder("=")
    assert again.shape == array.shape
    assert (again == array).all()


@each(
    "array",
    [np.array(["a"]), np.array([None]), np.array([1], dtype="M8[s]"), np.array([1], dtype=np.longdouble)],
)  # fmt: skip
def test_other_arrays_are_problems(array: Any) -> None:
    body, tensors, problems = encode({"x": array, "y": 1}, "batch")
    assert problems == [f"batch.x: an array of dtype {array.dtype} cannot be saved"]
    assert not tensors
    assert decode(body, {})["y"] == 1


@dataclass(slots=True)
class SlottedGraph:
    nodes: torch.Tensor
    name: str
    _cache: int = 0


class Storage(UserDict[str, Any]):
    pass


class GeometricData:
    """As in torch_geometric: it can be called, and its fields are in a mapping."""

    def __init__(self, **values: Any) -> None:
        self._store, self._edge_attr_cls = Storage(values), None

    def __call__(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("kind", [SlottedGraph, GeometricData])
def test_fields_of_slots_and_of_torch_geometric_are_kept(kind: Callable[..., Any]) -> None:
    encoder = Encoder()
    body = encoder.encode_batch(kind(nodes=torch.arange(3), name="g"), "batch.0")
    assert not encoder.problems
    again = decode(json.loads(json.dumps(body)), encoder.tensors)
    assert vars(again).keys() == {"nodes", "name"}
    assert differences(again.nodes, torch.arange(3)) == []


def test_names_that_would_be_the_same_are_kept_apart() -> None:
    batch: dict[Any, Any] = {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, 1: torch.tensor(2)}
    batch |= {"1": torch.tensor(3), "long " * 100: torch.tensor(4), "new\nline": torch.tensor(5)}
    encoder = Encoder()
    body = encoder.encode_batch(batch, "batch.0")
    again = decode(json.loads(json.dumps(body)), encoder.tensors)
    assert differences(again, batch) == []
    assert all(len(name) < 400 and name.isprintable() for name in encoder.tensors)


def test_a_container_that_contains_itself() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop += [{"again": loop}, [loop[0]], [loop[0]]]
    body, tensors, problems = encode(loop, "batch")
    assert problems == ["batch.1.again: a list that contains itself cannot be saved"]
    again = decode(body, tensors)
    assert again[2] == again[3] == [torch.ones(1)]


def test_problems_stay_few() -> None:
    encoder = Encoder()
    encoder.encode_batch([open] * 100, "batch.0")
    assert len(encoder.problems) == 21
    assert encoder.problems[-1] == "80 more values cannot be saved"


@each(
    ("value", "why"),
    [
        (range(3_000_000), "a range"),
        ([[]] * 3_000_000, "a list with too many values"),
        ("a" * 2**26, "a string of 67108864 characters"),
        ("\ud800", "a string of 1 characters"),
        (10**1000, "an integer of 3322 bits"),
        (torch.ones(2, device="meta"), "a meta tensor"),
        (torch.eye(2).to_sparse(), "a tensor of layout torch.sparse_coo"),
        ({(1, 2): 3}, "a mapping whose keys are neither text nor integers"),
        (nn.Linear(2, 2), "a Linear"),
        (math, "a module"),
    ],
)
def test_what_a_batch_may_hold_but_an_incident_does_not(value: Any, why: str) -> None:
    encoder = Encoder()
    body = encoder.encode_batch({"odd": value, "x": torch.ones(2)}, "batch.0")
    assert encoder.problems == [f"batch.0.odd: {why} cannot be saved"]
    assert decode(body, encoder.tensors)["x"].tolist() == [1, 1]


def test_a_state_has_no_limit_of_size() -> None:
    state = {str(index): {"step": index, "exp_avg": torch.zeros(1)} for index in range(10_000)}
    body, tensors, problems = encode(state, "optimizer")
    assert not problems
    assert len(tensors) == 10_000
    assert decode(body, tensors).keys() == state.keys()


@each(
    "body",
    [
        {"type": "tensor", "name": "missing"},
        {"type": "dict", "items": 3},
        {"type": "dict", "items": [["a"]]},
        {"type": "namedtuple", "fields": [["def", 1]]},
        {"type": "object", "fields": None},
        {"type": "exec", "code": "1"},
        {"type": "complex", "name": "x"},
        {"type": "left out"},
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
