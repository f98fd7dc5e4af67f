"""Device and host give the same answer for every row of numbers; norms are equal to torch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from halfguard.guard import policy
from halfguard.guard.consensus import Gradients, measure
from halfguard.guard.policy import StepLimits
from halfguard.guard.stepping.gate import Gate, PendingRows, read_signals
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")

LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-149  # the smallest subnormal
EDGES = [
    0.0, -0.0, 1.0, TINY, -TINY, 2.0**-126, LARGEST, -LARGEST,
    math.inf, -math.inf, math.nan, 65504.0, 2.0**24,
]  # fmt: skip

anything = st.sampled_from(EDGES) | st.floats(width=32)
magnitudes = anything.map(abs)  # a norm has no sign
flags = st.sampled_from([0.0, 1.0])
limit = st.sampled_from([math.inf, LARGEST, 1.0, 0.0, TINY]) | st.floats(
    width=32, allow_nan=False, min_value=-LARGEST
)
limits = st.builds(StepLimits, loss=limit, grad_norm=limit)


def row_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.on_standin
@settings(max_examples=600)
@given(anything, magnitudes, flags, anything, limits)
def test_device_and_host_agree(
    loss: float, norm: float, found_inf: float, scale: float, bounds: StepLimits
) -> None:
    row = row_of(loss, norm, found_inf, scale)
    refused = Gate().refused(row, bounds)
    cause = policy.find_cause(read_signals(row.tolist(), bounds))
    assert bool(refused) == (cause is not None), cause


@settings(max_examples=300)
@given(st.lists(limits, min_size=1, max_size=6), anything, magnitudes)
def test_a_gate_follows_its_limits(bounds: list[StepLimits], loss: float, norm: float) -> None:
    gate = Gate()
    row = row_of(loss, norm, 0.0, 1.0)
    for one in bounds:
        expected = policy.find_cause(read_signals(row.tolist(), one)) is not None
        assert bool(gate.refused(row, one)) == expected
        assert bool(gate.refused(row, one)) == expected


@settings(max_examples=200)
@given(anything, magnitudes, flags, st.floats(1, 2**24, width=32))
def test_a_row_holds_what_it_was_made_of(
    loss: float, norm: float, found_inf: float, scale: float
) -> None:
    parts = [torch.tensor(x) for x in (loss, norm, found_inf)]
    row = Gate.row(parts[0], parts[1], parts[2], torch.tensor(scale))
    expected = [loss, norm, found_inf, scale]
    assert row.dtype is torch.float32
    assert torch.equal(row, row_of(*expected)) or row.isnan().any()
    assert torch.equal(row.isnan(), row_of(*expected).isnan())
    assert read_signals(row.tolist(), StepLimits()).batch_ok


@each("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_takes_any_dtype(dtype: torch.dtype) -> None:
    one = torch.ones((), dtype=dtype)
    row = Gate.row(one, one, torch.zeros(()), torch.ones(()))
    assert row.tolist() == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.on_standin
def test_the_answer_costs_no_host_sync_and_few_operations() -> None:
    gate, row = Gate(), row_of(1.0, 1.0, 0.0, 1.0)
    gate.refused(row, StepLimits())
    with OpCounter() as counter:
        gate.refused(row, StepLimits())
    assert counter.host_syncs == 0
    assert counter.total <= 3


# -- norms

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def named_grads(shapes: list[tuple[int, torch.dtype]], seed: int) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (f"p{i}", torch.randn(size, generator=generator).to(dtype))
        for i, (size, dtype) in enumerate(shapes)
    ]


def torch_total(named: list[tuple[str, Tensor]], norm_type: float) -> Tensor:
    parameters = []
    for _, grad in named:
        parameters.append(nn.Parameter(torch.zeros_like(grad)))
        parameters[-1].grad = grad.clone()
    return clip_grad_norm_(parameters, 1e9, norm_type=norm_type)


@pytest.mark.on_standin
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from(DTYPES)), min_size=1, max_size=12),
    st.integers(0, 2**32),
    st.sampled_from([2.0, 1.0, 3.0, math.inf]),
)
def test_the_total_is_bitwise_that_of_clip_grad_norm(
    shapes: list[tuple[int, torch.dtype]], seed: int, norm_type: float
) -> None:
    named = named_grads(shapes, seed)
    found = measure(named, norm_type)
    expected = torch_total(named, norm_type)
    assert found.total.dtype is expected.dtype
    assert torch.equal(found.total, expected)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from(DTYPES)), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_every_norm_goes_with_its_name(shapes: list[tuple[int, torch.dtype]], seed: int) -> None:
    named = named_grads(shapes, seed)
    found = measure(named)
    assert sorted(found.names) == sorted(name for name, _ in named)
    by_name = dict(named)
    for name, norm in zip(found.names, found.norms, strict=True):
        assert norm == torch.linalg.vector_norm(by_name[name])


@each("dtype", DTYPES)
def test_norms_in_order_of_parameters_for_one_dtype(dtype: torch.dtype) -> None:
    assert measure(named_grads([(3, dtype)] * 5, 0)).names == ["p0", "p1", "p2", "p3", "p4"]


@pytest.mark.on_standin
def test_measuring_reads_nothing_and_costs_the_same_for_any_number_of_parameters() -> None:
    totals = []
    for count in (2, 200):
        named = named_grads([(4, torch.float32)] * count, 0)
        with OpCounter() as counter:
            measure(named)
        assert counter.host_syncs == 0
        totals.append(counter.total)
    assert totals[0] == totals[1]


@pytest.mark.parametrize("coalesced", [True, False])
def test_the_norm_of_a_sparse_gradient_is_that_of_the_dense_one(coalesced: bool) -> None:
    # If an embedding uses a row twice, its gradient has two entries for the row, which must be added.
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    grad = torch.sparse_coo_tensor(torch.tensor([[1, 1, 3]]), rows, (5, 2), check_invariants=True)
    grad = grad.coalesce() if coalesced else grad
    dense = ("dense", torch.ones(3))
    found = measure([("sparse", grad), dense])
    assert torch.equal(found.total, measure([("sparse", grad.to_dense()), dense]).total)


def gradients(**norms: float) -> Gradients:
    values = torch.tensor(list(norms.values()))
    return Gradients(list(norms), values, torch.linalg.vector_norm(values))


def test_culprits_are_those_that_are_not_finite() -> None:
    found = gradients(a=1e30, b=math.nan, c=1.0, d=math.inf)
    assert [name for name, _ in found.worst(5)] == ["b", "d"]
    assert [name for name, _ in found.worst(1)] == ["b"]


def test_else_the_largest_worst_first() -> None:
    assert gradients(a=1.0, b=3.0, c=2.0).worst(2) == [("b", 3.0), ("c", 2.0)]
    assert len(gradients(**{f"p{i}": float(i) for i in range(20)}).worst(5)) == 5


# -- rows are read in order, a fixed number of steps late


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
