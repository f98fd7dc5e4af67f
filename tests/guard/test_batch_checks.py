"""Batches as loaders in the field make them: any object is checked, described and kept at bounded cost.

``python -m tests.guard.test_batch_checks 10000`` (``scripts/soak batches``) tries as many random objects.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import json
import logging
import math
import random
import resource
import sys
import tempfile
import time
import tracemalloc
import warnings
import weakref
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import pack_sequence

from halfguard.guard.batch_checks import (
    batch_is_finite,
    describe_batch,
    every_label_ignored,
    fully_masked,
)
from halfguard.guard.guard import Guard
from halfguard.incident import decode, open_incident
from halfguard.incident.capture import BadStep, IncidentWriter
from halfguard.incident.encoding import Encoder
from halfguard.records import Action, Cause, StepRow
from halfguard.step.nested import batch_leaves
from tests.support.cases import each

OBJECTS = 300  # `scripts/soak batches` runs as many as it is told
# Seconds of this process, for the checks, the description and the encoding of one batch.
LIMIT = 0.05
NAN = torch.full((8, 4), math.nan)
FLOAT8 = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]  # fmt: skip


pytestmark = [
    pytest.mark.usefixtures("seed"),
    pytest.mark.filterwarnings("ignore:(ComplexHalf|Sparse):UserWarning"),
]


# -- stand-ins for batches of libraries


class Storage(MutableMapping[str, Any]):
    """As in torch_geometric: a mapping that holds the tensors of a graph."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._mapping = values

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mapping[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


class GraphData:
    """As torch_geometric's Data: attributes come from a storage, and the object can be called."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_store"] = Storage(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.__dict__["_store"]:
            raise AttributeError(name)
        return self.__dict__["_store"][name]

    def __call__(self, *names: str) -> Iterator[tuple[str, Any]]:
        return iter((name, self._store[name]) for name in names)

    def __len__(self) -> int:
        return len(self._store)


class Series:
    """As in pandas: a column whose numbers are a NumPy array."""

    def __init__(self, values: Any) -> None:
        self._mgr = [values]

    def to_numpy(self) -> Any:
        return self._mgr[0]


class DataFrame:
    """As in pandas: a table of columns."""

    def __init__(self, **columns: Any) -> None:
        self._mgr = columns

    @property
    def columns(self) -> list[str]:
        return list(self._mgr)

    def items(self) -> Iterator[tuple[str, Series]]:
        return ((name, Series(values)) for name, values in self._mgr.items())

    def to_numpy(self) -> NoReturn:
        raise AssertionError("a copy of the whole table")


class WithCall:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __call__(self) -> Any:
        return self.x


class Slotted:
    __slots__ = ("__hidden", "unset", "x")

    def __init__(self, x: Any) -> None:
        self.x, self.__hidden = x, 1


class SlottedChild(Slotted):
    __slots__ = ("more",)


@dataclass(slots=True)
class SlottedData:
    x: Any
    name: str = "a"


@dataclass
class Data:
    x: Any
    name: str = "a"


Pair = namedtuple("Pair", "x y")


class Node:
    """A tree whose nodes know their parent."""

    def __init__(self, parent: Node | None, depth: int) -> None:
        self.parent = parent
        self.children = [Node(self, depth - 1) for _ in range(3)] if depth else []


class Endless(Sequence[Any]):
    def __getitem__(self, index: Any) -> Any:
        return [index]

    def __len__(self) -> int:
        return sys.maxsize


class Hostile:
    """Raises wherever it can."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class BrokenMapping(UserDict[str, Any]):
    def __iter__(self) -> Iterator[str]:
        yield "x"
        raise OSError("the file is closed")


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Words(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("repr")


def nested_tensor(*parts: Tensor, layout: torch.layout = torch.strided) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strided layout is a prototype
        return torch.nested.nested_tensor(list(parts), layout=layout)


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def dead_proxy() -> Any:
    return weakref.proxy(Data(1))


def fake() -> Tensor:
    return FakeTensorMode().from_tensor(torch.ones(3))


def cycle() -> Any:
    loop: list[Any] = [1]
    loop.append({"again": loop, "data": Data(loop)})
    return loop


def wrapped(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value]
    return value


def forever() -> Iterator[int]:
    while True:
        yield 1


# -- tensors are found wherever they lie


@dataclass(frozen=True, slots=True)
class FrozenSample:
    x: Tensor
    y: Tensor


class TypedPair(NamedTuple):
    x: Tensor
    y: Tensor


class ModelOutput(OrderedDict[str, Tensor]):
    """A mapping whose entries are attributes too, as in transformers."""

    def __init__(self, **values: Tensor) -> None:
        super().__init__(values)
        self.__dict__.update(values)


Y = torch.tensor([0, 1])
CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda x: (x, Y),
    "list": lambda x: [x, Y],
    "mapping": lambda x: {"x": x, "y": Y},
    "nested": lambda x: {"inputs": [(x,), {}], "labels": ({"y": Y},)},
    "deque": lambda x: deque([x, Y]),
    "user mapping": lambda x: UserDict(x=x, y=Y),
    "named tuple": lambda x: Pair(x, Y),
    "typed named tuple": lambda x: TypedPair(x, Y),
    "dataclass": lambda x: Data(x, name=Y),  # type: ignore[arg-type]
    "dataclass with slots": lambda x: FrozenSample(x, Y),
    "model output": lambda x: ModelOutput(x=x, y=Y),
    "object": lambda x: SimpleNamespace(x=x, y=Y),
}


@each("kind", CONTAINERS)
def test_tensors_are_found_wherever_they_lie(kind: str) -> None:
    x = torch.tensor([1.0, -3.0])
    batch = CONTAINERS[kind](x)
    found = [leaf for leaf in batch_leaves(batch) if isinstance(leaf, Tensor)]
    assert [id(leaf) for leaf in found] == [id(x), id(Y)]
    assert batch_is_finite(batch)
    assert not batch_is_finite(CONTAINERS[kind](x * math.nan))


def test_leaves_of_anything_else() -> None:
    assert list(batch_leaves(None)) == [None]
    assert list(batch_leaves("abc")) == ["abc"]
    assert list(batch_leaves([1, (2.5, b"x"), {"k": "v"}])) == [1, 2.5, b"x", "v"]
    assert list(batch_leaves([])) == []
    assert list(map(id, batch_leaves(Y))) == [id(Y)]
    assert len(list(batch_leaves([np.zeros(100_000), Y]))) < 100


@each("before", [list(range(150_000)), bytearray(150_000), [[0]] * 150_000, range(10**15)])
def test_a_tensor_after_much_else_is_found(before: Any) -> None:
    assert not batch_is_finite({"before": before, "x": NAN})


def test_a_list_with_fields_of_another_length_is_opened() -> None:
    class Rows(list[Tensor]):
        _fields = ("all",)

    assert list(map(id, batch_leaves(Rows([NAN, Y])))) == [id(NAN), id(Y)]


@each("batch", [None, [], Y, {"y": Y}, "text", torch.zeros(0), {"m": Y > 0}])
def test_nothing_to_look_at(batch: Any) -> None:
    assert batch_is_finite(batch)


# -- so is NaN in anything else

NOT_FINITE: dict[str, Callable[[float], Any]] = {
    "float16 array": lambda v: np.array([1, v], dtype=np.float16),
    "float32 array": lambda v: np.array([[1, v]], dtype=np.float32),
    "float64 array": lambda v: np.array([1, v])[::-1],
    "big-endian array": lambda v: np.array([1, v], dtype=">f4"),
    "complex array": lambda v: np.array([1, complex(0, v)]),
    "object array": lambda v: np.array([torch.ones(1), "a", [v]], dtype=object),
    "structured array": lambda v: np.array([(1, v)], dtype=[("a", "i4"), ("b", "f4")]),
    "array of no dimension": np.array,
    "numpy scalar": lambda v: {"x": np.float32(v)},
    "half of an array": lambda v: np.full((5, 4, 3), v, dtype=np.float32)[:, ::2],
    "float": lambda v: v,
    "nested lists": lambda v: [[1.0, 2.0], [3.0, v]],
    "list of many": lambda v: [0.5] * 1000 + [v],
    "mixed list": lambda v: ["a", 1, None, v],
    "complex number": lambda v: (complex(1, v),),
    "set": lambda v: {1.5, v},
    "complex tensor": lambda v: torch.tensor([1, complex(v, 0)]),
    "complex32 tensor": lambda v: torch.tensor([1, complex(v, 0)]).to(torch.complex32),
    "nested tensor": lambda v: nested_tensor(torch.ones(3, 2), torch.full((2, 2), v)),
    "jagged tensor": lambda v: nested_tensor(torch.full((2, 2), v), layout=torch.jagged),
    "sparse tensor": lambda v: torch.tensor([[0, v]]).to_sparse(),
    "packed sequence": lambda v: pack_sequence([torch.ones(3), torch.full((2,), v)]),
    "csr tensor": lambda v: torch.tensor([[0, v]]).to_sparse_csr(),
    "many small tensors": lambda v: [torch.tensor(1.0 * i) for i in range(500)] + [torch.tensor(v)],
    "large tensor": lambda v: torch.cat([torch.zeros(5000), torch.tensor([v])]),
    "expanded tensor": lambda v: torch.tensor([[1.0], [v]]).expand(2, 10**12),
    "slots": Slotted,
    "inherited slots": SlottedChild,
    "dataclass with slots": SlottedData,
    "object with __call__": WithCall,
    "torch_geometric": lambda v: GraphData(edge_index=torch.zeros(2, 3).long(), x=torch.tensor([v])),
    "Series": lambda v: Series(np.array([1, v])),
    "DataFrame": lambda v: DataFrame(name=np.array(["a", "b"], dtype=object), age=np.array([1, v])),
    "deep": lambda v: wrapped(torch.tensor(v), 50),
    "after much else": lambda v: [[0.5] * 10**6, Node(None, 7), range(10**9), {"x": torch.tensor(v)}],
}  # fmt: skip


@each("kind", NOT_FINITE)
def test_a_number_that_is_not_finite_is_found(kind: str) -> None:
    assert batch_is_finite(NOT_FINITE[kind](2.0))
    for value in (math.nan, math.inf, -math.inf):
        assert not batch_is_finite({"first": torch.ones(2), "batch": NOT_FINITE[kind](value)})


@each("dtype", FLOAT8)
def test_float8(dtype: torch.dtype) -> None:
    assert batch_is_finite([torch.ones(2, 4).to(dtype), torch.ones(5000).to(dtype)])
    assert not batch_is_finite(torch.tensor([1.0, math.nan]).to(dtype))
    assert describe_batch(torch.ones(2, 4).to(dtype)).endswith("[2, 4]")


WITHOUT_VALUES: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.ones(3, device="meta"),
    "meta integers": lambda: torch.ones(3, device="meta", dtype=torch.int64),
    "fake": fake,
    "fake among others": lambda: [torch.ones(2), fake(), torch.ones(3)],
    "quantized": quantized,
    "nested integers": lambda: nested_tensor(torch.ones(3).long()),
    "sparse integers": lambda: torch.tensor([[0, 3]]).to_sparse(),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "float4": lambda: torch.zeros(2, dtype=torch.uint8).view(
        getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    ),
    "bits": lambda: torch.empty(2, dtype=torch.bits8),
    "text array": lambda: np.array(["a", "b"]),
    "times": lambda: np.array(["NaT"], dtype="datetime64[s]"),
    "dead proxy": dead_proxy,
    "hostile": Hostile,
    "broken mapping": lambda: BrokenMapping(x=1),
    "array of no dimension": lambda: np.array(1.0),
    "numpy scalar": lambda: np.float32(1),
    "enum": lambda: Color.RED,
    "class": lambda: int,
    "function": lambda: len,
    "cycle": cycle,
    "module with bad weights": lambda: nn.ParameterList([nn.Parameter(NAN)]),
}


@each("kind", WITHOUT_VALUES)
def test_what_cannot_be_checked_does_no_harm(kind: str) -> None:
    odd = WITHOUT_VALUES[kind]()
    assert batch_is_finite(odd)
    assert not every_label_ignored(odd, 7)
    assert not batch_is_finite([odd, NAN])
    assert "float32[8, 4]" in describe_batch([odd, NAN])
    encoder = Encoder()
    assert json.dumps(encoder.encode_batch([odd, NAN], "batch"), allow_nan=False)
    assert any(tensor.shape == NAN.shape for tensor in encoder.tensors.values())


def test_an_iterator_is_not_used_up() -> None:
    stream = iter([torch.ones(1), NAN])
    check([stream, forever()])
    assert len(list(stream)) == 2


# -- labels


def labels(**values: Any) -> dict[str, Any]:
    zeros = torch.zeros(2, 4, dtype=torch.int64)
    return {"x": torch.ones(2), "token_type_ids": zeros, "attention_mask": zeros} | values


IGNORED, USED = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 3])


@each(
    ("batch", "ignored"),
    [
        (labels(), False),
        (labels(labels=USED), False),
        (labels(labels=IGNORED), True),
        (labels(Labels=IGNORED), True),
        (labels(lm_labels=IGNORED), True),
        (labels(label_ids=IGNORED), True),
        (labels(y=USED, length=IGNORED), False),
        (labels(y=torch.ones(2), length=IGNORED), False),
        (labels(length=IGNORED), True),  # as before: no name says which is the label
        (labels(labels=IGNORED.numpy()), True),
        (labels(labels=USED.numpy()), False),
        (labels(target={"labels": USED, "iscrowd": IGNORED}), False),
        (labels(target={"a": IGNORED}), True),
        (labels(target={"a": USED}), False),
        (labels(target=IGNORED.to(torch.uint8)), True),
        ((torch.ones(2), IGNORED), True),
        ((torch.ones(2), USED), False),
        (Data(torch.ones(1), "y"), False),
        (GraphData(x=torch.ones(2), batch=IGNORED, y=USED), False),
        (GraphData(x=torch.ones(2), batch=IGNORED, y=IGNORED), True),
        (None, False),
        (torch.zeros(2), False),
        (torch.zeros(0, dtype=torch.int64), False),
        (torch.zeros(2) > 0, False),
    ],
)
def test_only_labels_are_judged(batch: Any, ignored: bool) -> None:
    assert every_label_ignored(batch, 0) == ignored


@each("dtype", [torch.int64, torch.int32])
def test_every_label_ignored(dtype: torch.dtype) -> None:
    batch = {"x": torch.ones(2), "labels": torch.full((2, 3), -100, dtype=dtype)}
    assert every_label_ignored(batch, -100)
    assert not every_label_ignored(batch, -1)
    batch["labels"][1, 2] = 4
    assert not every_label_ignored(batch, -100)
    # What -100 would be in a dtype that cannot hold it is a label like any other.
    assert not every_label_ignored(torch.full((3,), 156, dtype=torch.uint8), -100)


# -- privacy and descriptions


def test_description() -> None:
    batch = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64), "id": ["a7", 12]}
    assert describe_batch(batch) == "float32[2, 3], int64[2], 'a7', 12"
    assert describe_batch(batch, about="shard 3") == "shard 3, float32[2, 3], int64[2], 'a7', 12"
    assert describe_batch(None) == ""
    assert describe_batch(None, about={"file": 1}) == "{'file': 1}"
    assert len(describe_batch(["x" * 10_000] * 10_000, about="y" * 10_000)) < 2000


def test_a_private_description_has_only_dtypes_and_shapes() -> None:
    batch = {
        "name": "Ada", "age": 36, "weights": [1.5, 2.5], "x": torch.ones(2, 3), "ids": np.arange(4),
        "names": np.array(["Ada"], dtype=object), "id": np.int64(12), "level": Level.LOW,
    }  # fmt: skip
    assert describe_batch(batch, contents=False) == "float32[2, 3], numpy.int64[4]"
    full = describe_batch(batch, "patient 7")
    assert full.startswith("patient 7, 'Ada', 36, float32[2, 3], numpy.int64[4]")


def test_no_value_makes_the_description_fail() -> None:
    batch = [Words("a"), 10**10_000, np.float64(1.5), True, Level.LOW, math.nan, None, Hostile()]
    expected = "'a', an integer of 33220 bits, 1.5, True, 1, nan"
    assert describe_batch(batch) == expected
    assert describe_batch(None, Hostile()) == "a Hostile"
    assert describe_batch(nested_tensor(torch.ones(2), torch.ones(3))) == "float32[2, nested]"


# -- guarded steps: the reproductions


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def cause(loss: Callable[[nn.Module, Any], Tensor], batch: Any, **config: Any) -> Cause | None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Guard(model, optimizer, {"scale": {"init": 8.0}, **config}).step(loss, batch).cause


def test_causes() -> None:
    array = np.full((2, 4), np.nan, np.float32)
    nan = float("nan")
    assert cause(lambda m, b: loss_fn(m, torch.from_numpy(b)), array) is Cause.BAD_BATCH
    assert cause(lambda m, b: m(b).float().mean(), torch.ones(0, 4)) is Cause.BAD_BATCH
    # These batches are good: the loss itself is not finite.
    overflow = Cause.FORWARD_OVERFLOW
    boxes = {"x": torch.ones(2, 4), "boxes": torch.ones(0, 4)}
    assert cause(lambda m, b: m(b["x"]).float().mean() * math.inf, boxes) is overflow
    float8 = torch.ones(2, 4).to(torch.float8_e4m3fn)
    assert cause(lambda m, b: loss_fn(m, b.float() * nan), float8) is overflow
    ignored = torch.full((2, 4), -100)
    batch = {"x": torch.ones(2, 4), "token_type_ids": ignored, "labels": USED}
    found = cause(lambda m, b: (m(b["x"]) * 6e4 * 6e4).float().mean() * math.inf, batch)
    assert found is overflow


@pytest.mark.parametrize("run_dir", [True, False])
def test_linked_objects_do_not_hang_a_bad_step(run_dir: bool, tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run_dir=tmp_path if run_dir else None)
    batch = {"tree": Node(None, 9), "many": range(3_000_000), "inner": {"x": NAN}}
    start = time.process_time()
    outcome = guard.step(lambda m, b: loss_fn(m, b["inner"]["x"]), batch)
    assert time.process_time() - start < 5
    assert outcome.cause is Cause.BAD_BATCH
    if run_dir:
        incident = open_incident(tmp_path / "incidents" / "000000-r0")
        assert "batch.0.many: a range cannot be saved" in incident.record.problems
        assert len(incident.record.problems) <= 21
        again = decode(incident.record.micro_batches[0].batch, incident.tensors())
        assert again["inner"]["x"].isnan().all()
        assert (incident.folder / "incident.json").stat().st_size < 2**20


# -- any object at all

LARGE: dict[str, Callable[[], Any]] = {
    "tree": lambda: Node(None, 9),
    "range": lambda: range(3_000_000),
    "numbers": lambda: [0.5] * 3_000_000,
    "strings": lambda: ["abc"] * 3_000_000,
    "lists": lambda: [[i] for i in range(200_000)],
    "dicts": lambda: [{"a": i, "b": "c"} for i in range(100_000)],
    "mapping": lambda: dict.fromkeys(range(1_000_000), "a"),
    "tensors": lambda: [torch.ones(2) for _ in range(20_000)],
    "arrays": lambda: [np.ones(2) for _ in range(20_000)],
    "objects": lambda: [Slotted([i]) for i in range(50_000)],
    "object array": lambda: np.array(["a", 1.5, None] * 300_000, dtype=object),
    "one long list": lambda: [["a"] * 100_000 + [math.nan]] * 5000,
    "one long string": lambda: [["\u00fc" * 1_000_000]] * 5000,
    "endless": Endless,
    "long text": lambda: "a" * 50_000_000,
    "long name": lambda: {"k" * 5_000_000: torch.ones(1)},
    "columns": lambda: DataFrame(**{f"c{i}": np.ones(3) for i in range(20_000)}),
    "expanded": lambda: [torch.ones(1).expand(10**12), np.broadcast_to(np.float32(1), (10**12,))],
}


@pytest.mark.slow
@pytest.mark.alone
@each("kind", LARGE)
def test_time_and_memory_are_bounded(kind: str) -> None:
    value = LARGE[kind]()
    batch = {"value": value, "inner": {"x": NAN}}
    assert not batch_is_finite(batch)
    # A machine with other work: the soak test has the limit itself.
    assert time_of(batch) < 4 * LIMIT
    tracemalloc.start()
    try:
        check(batch)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def check(batch: Any) -> Encoder:
    """Do everything that the guard does with the batch of a bad step, except writing it to disk."""
    batch_is_finite(batch)
    every_label_ignored(batch, -100)
    describe_batch(batch, "about")
    encoder = Encoder()
    encoder.encode_batch(batch, "batch.0")
    return encoder


def time_of(batch: Any) -> float:
    """Return the least of three times: other threads of this process count as well."""
    times = []
    for _ in range(3):
        start = time.process_time()
        check(batch)
        times.append(time.process_time() - start)
        if times[-1] < LIMIT:
            break
    return min(times)


NUMBERS, STRINGS = [0.5] * 100_000, ["a"] * 100_000
LAYOUTS = [torch.strided, torch.jagged]
LEAVES: list[Callable[[random.Random], Any]] = [
    lambda r: r.choice([None, True, 1, -(2**70), 10**5000, 1.5, math.nan, math.inf, 1j, b"a", "a"]),
    lambda r: r.choice(["", "\ud800", "\x00", "ü" * 100, "x" * 5000, Words("a"), Decimal("NaN"), 3**400]),
    lambda r: r.choice([Color.RED, Level.LOW, datetime.date(2020, 1, 1), Path("a"), int, len, print]),
    lambda r: r.choice([range(10**12), bytearray(10**6), memoryview(b"abc"), slice(3), ..., math, np]),
    lambda r: r.choice([forever(), iter([1]), map(str, [1]), open, functools.partial(print, 1)]),
    lambda r: r.choice([lambda: 1, torch.float32, torch.device("cpu"), torch.Size([2]), torch.Generator()]),
    lambda r: r.choice([Hostile, dead_proxy, Endless, MagicMock, object, cycle, fake, quantized])(),
    lambda r: r.choice([nn.Identity(), BrokenMapping(x=1), NUMBERS, STRINGS]),
    lambda r: Node(None, r.randint(0, 4)),
    lambda r: torch.randn(r.choice([(), (0,), (3,), (2, 3), (1, 1, 1, 2)])),
    lambda r: torch.ones(2, 4).to(r.choice([*FLOAT8, torch.float16, torch.bfloat16, torch.complex128])),
    lambda r: torch.ones(3).to(r.choice([torch.bool, torch.int64, torch.uint16, torch.complex32])),
    lambda r: nested_tensor(torch.ones(2, 2), torch.ones(3, 2), layout=r.choice(LAYOUTS)),
    lambda r: torch.eye(4).to_sparse(layout=r.choice([torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])),
    lambda r: r.choice([torch.ones(2, device="meta"), torch.ones(2, dtype=torch.cfloat).conj(), NAN.t()]),
    lambda r: r.choice([torch.ones(2, requires_grad=True), torch.ones(1).expand(10**11), nn.Parameter(NAN)]),
    lambda r: np.ones(3).astype(r.choice(["f2", "f4", ">f8", "c16", "i4", "u8", "?", "U3", "O", "M8[s]"])),
    lambda r: r.choice([np.ones((2, 3))[::-1], np.broadcast_to(np.ones(1), (10**9,)), np.longdouble(1)]),
    lambda r: r.choice([np.zeros(2, dtype=[("a", "f4"), ("b", "O")]), np.ma.masked_all(3), np.float32(1)]),
]  # fmt: skip


KEYS = ["x", "labels", "a.b", "_store", "", "\ud800", "k" * 300, 1, 10**400, None, (1, 2), 1.5]


def random_object(r: random.Random, depth: int, made: list[Any]) -> Any:
    """Return a nested object; ``made`` are those to which it may refer, so that there are cycles."""
    if depth == 0 or r.random() < 0.2:
        return r.choice(LEAVES)(r)
    if made and r.random() < 0.1:
        return r.choice(made)
    kind = r.randrange(14)
    if kind == 0:
        filled: Any = []
        made.append(filled)
        filled += [random_object(r, depth - 1, made) for _ in range(r.randint(0, 5))]
        return filled
    if kind == 1:
        table: dict[Any, Any] = r.choice([dict, OrderedDict])()
        made.append(table)
        for _ in range(r.randint(0, 5)):
            table[r.choice(KEYS)] = random_object(r, depth - 1, made)
        return table
    width = r.choice([1, 2, 3, 40]) if depth < 3 else 2
    inner = [random_object(r, depth - 1, made) for _ in range(width)]
    single = inner[0]
    if kind == 2:
        with contextlib.suppress(TypeError):  # of what has no hash
            return frozenset(inner)
    array = np.empty(len(inner), dtype=object)
    for index, item in enumerate(inner):
        array[index] = item
    makers: list[Callable[[], Any]] = [
        lambda: tuple(inner), lambda: deque(inner), lambda: UserList(inner), lambda: UserDict(a=single),
        lambda: Pair(single, inner), lambda: Slotted(inner), lambda: SlottedChild(single),
        lambda: SlottedData(inner), lambda: Data(inner), lambda: WithCall(single), lambda: array,
        lambda: GraphData(x=single, y=inner), lambda: DataFrame(a=array, b=single), lambda: Series(array),
    ]  # fmt: skip
    return r.choice(makers)()


def try_objects(count: int, seed: int, folder: Path, limit: float) -> float:
    """Check random objects, and return the longest time. Every tenth becomes an incident on disk."""
    torch.manual_seed(seed)
    rng, longest = random.Random(seed), 0.0
    model = nn.Linear(2, 2)
    for number in range(count):
        batch = {"object": random_object(rng, rng.randint(0, 6), []), "inner": {"x": NAN}}
        taken = time_of(batch)
        assert taken < limit, f"object {number} of seed {seed} took {taken:.3f} s"
        longest = max(longest, taken)
        assert not batch_is_finite(batch)
        assert len(describe_batch(batch)) < 2000
        assert sum(1 for _ in zip(batch_leaves(batch), range(500_000), strict=False)) < 500_000
        encoder = Encoder()
        body = json.loads(json.dumps(encoder.encode_batch(batch, "batch.0"), allow_nan=False))
        assert decode(body, encoder.tensors)["inner"]["x"].isnan().all()
        if number % 10 == 0:
            again = captured(batch, model, folder / str(number))
            assert again["inner"]["x"].isnan().all()
    return longest


def captured(batch: Any, model: nn.Module, folder: Path) -> Any:
    row = StepRow(
        step=0, action=Action.SKIP, cause=Cause.BAD_BATCH, loss=1.0, grad_norm=1.0, scale=1.0
    )
    moment = BadStep(row, [(batch, None, Hostile())], {}, "fp32", "cpu")
    writer = IncidentWriter(folder, keep=1, max_bytes=2**24, weights=True, environment={})
    path = writer.capture(model, moment)
    if path is None:  # expanded tensors, which would fill the disk
        assert "the limit for an incident" in writer.why_missed, writer.why_missed
        return batch
    incident = open_incident(path)
    return decode(incident.record.micro_batches[0].batch, incident.tensors())


@pytest.mark.slow
def test_random_objects(tmp_path: Path) -> None:
    try_objects(OBJECTS, 1, tmp_path, 5 * LIMIT)


def main(count: int = 10_000) -> None:
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    warnings.simplefilter("ignore")
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        longest = try_objects(count, seed, Path(folder), LIMIT)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count} objects: at most {longest * 1000:.1f} ms each; peak {peak:.0f} MiB")
    assert peak < 2048, "more than 2 GiB"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))


KEEP = torch.tensor([[1, 1, 0], [1, 0, 0]])
NONE = torch.tensor([[1, 1, 0], [0, 0, 0]])
ADDED = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])
ALL = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]])


@each(
    ("name", "mask"),
    [
        ("attention_mask", NONE),
        ("attention_mask", NONE.bool()),
        ("attention_mask", NONE.float()),
        ("decoder_attention_mask", NONE),
        ("key_padding_mask", NONE == 0),
        ("src_key_padding_mask", NONE == 0),
        ("mask", ALL),
        ("attn_mask", ALL.half()),
        ("attn_mask", ALL.clamp(min=torch.finfo(torch.float32).min)),
        ("mask", ALL.expand(2, 3, 2, 2)),
    ],
)
def test_a_fully_masked_row(name: str, mask: Tensor) -> None:
    assert fully_masked({"x": torch.ones(2), "inner": {name: mask}}) == name


@each(
    ("name", "mask"),
    [
        ("attention_mask", KEEP),
        ("attention_mask", KEEP.float()),
        ("attention_mask", torch.zeros(2, 3)),  # added to scores, it masks nothing
        ("attention_mask", torch.tensor([[0.0, -1e4], [0.0, 0.0]])),
        ("attention_mask", NONE.expand(2, 1, 2, 3)),  # rows of padding
        ("attention_mask", torch.zeros(0, 3)),
        ("attention_mask", torch.zeros(3, dtype=torch.int64)),
        ("key_padding_mask", KEEP == 0),
        ("key_padding_mask", torch.ones(2, 3)),
        ("padding_mask", torch.ones(2, 3, dtype=torch.bool)),  # both meanings are in use
        ("attn_mask", torch.zeros(2, 3, dtype=torch.bool)),
        ("mask", ADDED),
        ("mask", NONE),
        ("x", ALL),
        ("attention_mask", torch.ones(2, 3).to_sparse()),
        ("attention_mask", "no tensor"),
    ],
)
def test_a_mask_that_is_good_or_not_understood(name: str, mask: Any) -> None:
    assert fully_masked({name: mask}) == ""


@each("batch", [None, ALL, [ALL, NONE], "text"])
def test_a_mask_without_a_name_is_not_judged(batch: Any) -> None:
    assert fully_masked(batch) == ""
