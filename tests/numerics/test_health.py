"""Health against a plain float64 loop, and its cost in operations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from halfguard.errors import UsageError
from halfguard.formats import BF16, FP8_E4M3FN, FP16, FP32, Format
from halfguard.numerics import tensor_rows
from halfguard.numerics.health import FIELDS, health
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reference(tensor: Tensor, target: Format, scale: float) -> dict[str, float]:
    """The same statistics, one Python float at a time; rounding by the format's own exact rule."""
    values = [float(v) for v in tensor.detach().double().reshape(-1)]
    finite = [v for v in values if math.isfinite(v)]
    nonzero = [abs(v) for v in finite if v != 0]
    stored = [(v, target.round(v * scale)) for v in finite]
    return {
        "absmax": max((abs(v) for v in finite), default=0.0),
        "absmin": min(nonzero, default=math.inf),
        "norm": torch.tensor(values, dtype=torch.float64).norm().item(),
        "nan": sum(math.isnan(v) for v in values),
        "posinf": sum(v == math.inf for v in values),
        "neginf": sum(v == -math.inf for v in values),
        "zero": sum(v == 0 for v in values),
        "overflow": sum(not math.isfinite(s) for _, s in stored),
        "underflow": sum(v != 0 and s == 0 for v, s in stored),
        "numel": len(values),
    }


def assert_equals_reference(
    tensors: list[Tensor], target: Format = FP16, scale: float = 1.0
) -> None:
    for position, row in enumerate(health(tensors, target=target, scale=scale).rows()):
        expected = reference(tensors[position], target, scale)
        for field in FIELDS:
            assert row[field] == pytest.approx(expected[field], rel=1e-12, nan_ok=True), (
                f"tensor {position} ({tensors[position].dtype}): {field}"
            )


def awkward(dtype: torch.dtype) -> list[Tensor]:
    """Shapes and values that a fused pass could get wrong."""
    limits = torch.finfo(dtype)
    special = [
        *(0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf),
        *(limits.max, limits.min, limits.tiny, limits.smallest_normal / 4),
        *(65504.0, 65519.0, 65520.0, 2.0**-24, 2.0**-25, 2.0**-26, 3e-8),
    ]
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(3, 5, 16, 16, generator=generator).to(dtype)
    return [
        torch.tensor(special, dtype=torch.float64).to(dtype),
        torch.tensor(3.0).to(dtype),
        torch.tensor(math.nan).to(dtype),
        torch.empty(0, dtype=dtype),
        torch.empty(4, 0, 2, dtype=dtype),
        torch.randn(tensor_rows.ROW_LENGTH, generator=generator).to(dtype),
        torch.randn(tensor_rows.ROW_LENGTH + 1, generator=generator).to(dtype),
        base.to(memory_format=torch.channels_last),
        base.transpose(0, 3)[::2],
        base[0, 0, 0].expand(7, 16),
        torch.zeros(300, dtype=dtype),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("target", "scale"), [(FP16, 1.0), (FP16, 1024.0), (BF16, 1.0), (FP32, 0.5)]
)
def test_equals_a_plain_loop(dtype: torch.dtype, target: Format, scale: float) -> None:
    assert_equals_reference(awkward(dtype), target, scale)


def test_a_format_without_infinity_rounds_its_midpoint_down() -> None:
    row = health([torch.tensor([448.0, 464.0, 465.0])], target=FP8_E4M3FN).rows()[0]
    assert row["overflow"] == 1


@pytest.mark.on_standin
def test_mixed_dtypes_keep_the_order_of_the_list() -> None:
    assert_equals_reference(
        [tensor for group in zip(*map(awkward, DTYPES), strict=True) for tensor in group]
    )


@pytest.mark.slow
def test_every_half_value() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    assert_equals_reference([bits.view(torch.float16), bits.view(torch.bfloat16)], scale=2.0**-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(width=32), max_size=600), min_size=1, max_size=6),
    st.sampled_from(DTYPES),
    st.integers(-20, 20),
)
def test_any_floats(lists: list[list[float]], dtype: torch.dtype, exponent: int) -> None:
    assert_equals_reference(
        [torch.tensor(v, dtype=torch.float64).to(dtype) for v in lists], FP16, 2.0**exponent
    )


def test_passes_are_bounded_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_rows, "PASS_ELEMENTS", 700)
    tensors = awkward(torch.float32) * 2
    assert sum(1 for _ in tensor_rows.lay_out(tensors)) > 3
    assert_equals_reference(tensors)


def test_total_is_that_of_one_tensor() -> None:
    generator = torch.Generator().manual_seed(2)
    tensors = [torch.randn(n, generator=generator) for n in (1, 300, 7)]
    (row,) = health(tensors).total().rows()
    (whole,) = health([torch.cat(tensors)]).rows()
    assert row == pytest.approx(whole, rel=1e-12)


@pytest.mark.slow
def test_counts_above_two_to_the_24_are_exact() -> None:
    assert health([torch.zeros(2**24 + 3, dtype=torch.float16)]).rows()[0]["zero"] == 2**24 + 3


@pytest.mark.on_standin
def test_scale_may_live_on_the_device() -> None:
    tensors = awkward(torch.float32)
    assert health(tensors, scale=torch.tensor(512.0)).rows()[0] == pytest.approx(
        health(tensors, scale=512.0).rows()[0], nan_ok=True
    )


def test_parameters_and_autocast_are_left_alone() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    with torch.autocast("cpu", torch.float16):
        result = health([weight])
    assert not result.table.requires_grad
    assert result["norm"].item() == 5.0


def _count(tensors: list[Tensor]) -> OpCounter:
    counter = OpCounter()
    with counter:
        health(tensors, scale=torch.ones(()))
    return counter


@pytest.mark.on_standin
def test_operations_do_not_depend_on_the_number_of_tensors() -> None:
    few = _count([torch.zeros(100) for _ in range(10)])
    many = _count([torch.zeros(100) for _ in range(2000)])
    assert few.ops == many.ops
    assert few.total < 80
    assert few.host_syncs == many.host_syncs == 0


def test_operations_do_not_depend_on_layouts() -> None:
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    few = _count([images, torch.zeros(()), torch.zeros(5, 3).T])
    many = _count([images, torch.zeros(()), torch.zeros(5, 3).T] * 300)
    assert few.ops == many.ops


def test_runs_under_fake_tensors() -> None:
    with FakeTensorMode():
        result = health([torch.empty(3, 5), torch.empty(()), torch.empty(7)], scale=torch.empty(()))
    assert result.table.shape == (3, len(FIELDS))


@pytest.fixture
def one_rank() -> Iterator[None]:
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_dtensor_is_seen_through_its_local_shard() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0)])
    assert health([sharded]).rows()[0]["absmax"] == 11.0


def test_says_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="empty list"):
        health([])
    with pytest.raises(UsageError, match=r"Tensor 1 has dtype torch\.int64"):
        health([torch.zeros(2), torch.arange(3)])
    with pytest.raises(UsageError, match=r"several devices \(.*meta.*\)"):
        health([torch.zeros(2), torch.zeros(2, device="meta")])
