"""Batches of any structure are checked, and no content makes the check fail."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from halfguard.guard.batch_checks import batch_is_finite, describe_batch, every_label_ignored
from halfguard.step.nested import batch_leaves
from tests.support.cases import each
from tests.support.pairs import parametrize_pairs

X, Y = torch.tensor([1.0, -3.0]), torch.tensor([0, 1])


@dataclass
class Sample:
    x: Tensor
    y: Tensor


@dataclass(frozen=True, slots=True)
class SlottedSample:
    x: Tensor
    y: Tensor


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class ModelOutput(OrderedDict[str, Tensor]):
    """A mapping whose entries are attributes too, as in transformers."""

    def __init__(self, **values: Tensor) -> None:
        super().__init__(values)
        self.__dict__.update(values)


class Graph:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Split(enum.Enum):
    TRAIN = 1
    TEST = 2


Namespace = namedtuple("Namespace", "x y")

BATCHES: dict[str, Any] = {
    "tuple": (X, Y),
    "list": [X, Y],
    "mapping": {"x": X, "y": Y},
    "nested": {"inputs": [(X,), {}], "labels": ({"y": Y},)},
    "deque": deque([X, Y]),
    "user mapping": UserDict(x=X, y=Y),
    "named tuple": Pair(X, Y),
    "old named tuple": Namespace(X, Y),
    "dataclass": Sample(X, Y),
    "dataclass with slots": SlottedSample(X, Y),
    "model output": ModelOutput(x=X, y=Y),
    "object": Graph(X, Y),
}


@each("kind", BATCHES)
def test_tensors_are_found_wherever_they_lie(kind: str) -> None:
    found = [leaf for leaf in batch_leaves(BATCHES[kind]) if isinstance(leaf, Tensor)]
    assert [id(leaf) for leaf in found] == [id(X), id(Y)]


def test_leaves_of_anything_else() -> None:
    assert list(batch_leaves(None)) == [None]
    assert list(batch_leaves("abc")) == ["abc"]
    assert list(batch_leaves([1, (2.5, b"x"), {"k": "v"}])) == [1, 2.5, b"x", "v"]
    assert list(batch_leaves([])) == []


def test_one_tensor_is_not_taken_apart() -> None:
    assert list(map(id, batch_leaves(X))) == [id(X)]


@each("odd", [np.array(1.0), np.float32(1), Split.TRAIN, int, len])
def test_odd_things_do_no_harm(odd: object) -> None:
    batch = [odd, X]
    assert [leaf is X for leaf in batch_leaves(batch)][-1]
    assert batch_is_finite(batch)
    assert "float32[2]" in describe_batch(batch)


def test_a_batch_that_contains_itself_ends() -> None:
    graph = Graph(X, Y)
    graph.parent = graph  # type: ignore[attr-defined]
    batch: list[Any] = [graph]
    batch.append(batch)
    assert batch_is_finite(batch)
    assert not every_label_ignored(batch, -100)
    assert describe_batch(batch)


def test_what_can_be_read_once_is_left_to_the_model() -> None:
    stream = iter([X, Y])
    assert batch_is_finite({"stream": stream, "x": X})
    assert len(list(stream)) == 2


def test_a_large_array_is_not_walked_through() -> None:
    assert len(list(batch_leaves([np.zeros(100_000), X]))) < 100


@pytest.mark.parametrize(
    "before",
    [list(range(150_000)), bytearray(150_000), [[0]] * 150_000, range(10**15)],
    ids=["list", "bytes", "lists", "range"],
)
def test_a_tensor_after_much_else_is_found(before: Any) -> None:
    assert not batch_is_finite({"before": before, "x": X * math.nan})


def test_a_list_with_fields_of_another_length_is_opened() -> None:
    class Rows(list[Tensor]):
        _fields = ("all",)

    assert list(map(id, batch_leaves(Rows([X, Y])))) == [id(X), id(Y)]


# -- finite?


@each("kind", BATCHES)
def test_a_finite_batch(kind: str) -> None:
    assert batch_is_finite(BATCHES[kind])


@each("batch", [None, [], Y, {"y": Y}, "text", torch.zeros(0), {"m": Y > 0}])
def test_nothing_to_look_at(batch: Any) -> None:
    assert batch_is_finite(batch)


@parametrize_pairs(
    place=[0, 1],
    dtype=[torch.float16, torch.bfloat16, torch.float32, torch.float64],
    value=[math.nan, math.inf, -math.inf],
)
def test_one_bad_value_is_found(value: float, dtype: torch.dtype, place: int) -> None:
    tensors = [torch.ones(3, 4), torch.ones(5, dtype=dtype)]
    tensors.insert(place, torch.full((2, 3), 2.0, dtype=dtype))
    assert batch_is_finite(tensors)
    tensors[place][1, 2] = value
    assert not batch_is_finite(tensors)


def test_large_values_are_finite() -> None:
    assert batch_is_finite(
        [torch.ones(2).half(), torch.tensor([3.4e38]), torch.tensor([1e300], dtype=torch.float64)]
    )


@pytest.mark.parametrize("value", [2.0, math.nan])
def test_sparse_inputs(value: float) -> None:
    # The adjacency of a graph recommender.
    sparse = torch.tensor([[0.0, value], [1.0, 0.0]]).to_sparse()
    assert batch_is_finite([sparse, torch.ones(2)]) == math.isfinite(value)


# -- anything to learn?


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_every_label_ignored(dtype: torch.dtype) -> None:
    ignored = torch.full((2, 3), -100, dtype=dtype)
    assert every_label_ignored({"x": X, "labels": ignored}, -100)
    assert not every_label_ignored({"x": X, "labels": ignored}, -1)
    ignored[1, 2] = 4
    assert not every_label_ignored({"x": X, "labels": ignored}, -100)


@pytest.mark.parametrize("batch", [None, X, torch.zeros(0, dtype=torch.int64), torch.ones(2) > 0])
def test_where_there_are_no_labels_none_is_ignored(batch: Any) -> None:
    assert not every_label_ignored(batch, -100)


# -- for the journal


def test_description() -> None:
    batch = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64), "id": ["a7", 12]}
    assert describe_batch(batch) == "float32[2, 3], int64[2], 'a7', 12"
    assert describe_batch(batch, about="shard 3") == "shard 3, float32[2, 3], int64[2], 'a7', 12"
    assert describe_batch(None) == ""
    assert describe_batch(None, about={"file": 1}) == "{'file': 1}"


def test_a_description_stays_short() -> None:
    assert len(describe_batch(["x" * 10_000] * 10_000, about="y" * 10_000)) < 2000


def test_packed_sequences() -> None:
    packed = pack_sequence([torch.ones(3), torch.full((2,), 7.0)])
    assert batch_is_finite(packed)
    assert not batch_is_finite(pack_sequence([torch.ones(3), torch.full((2,), math.nan)]))
