"""The parity self-test passes here, finds planted faults, and its bounds are neither broken nor wide."""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from halfguard.diagnosis.parity import cases
from halfguard.diagnosis.parity.cases import CASES, OPERATIONS, Arithmetic, Operations
from halfguard.diagnosis.parity.selftest import FORMATS, device_arithmetic, run_selftest
from halfguard.records.machine import ParityRow

HALF = ("FP16", "BF16")


def rows(operations: Operations, batch_size: int = 2) -> dict[str, ParityRow]:
    found = run_selftest(batch_size=batch_size, operations=operations)
    return {row.precision: row for row in found}


@pytest.mark.slow
def test_it_passes_here_in_every_format_and_is_short() -> None:
    start = time.process_time()  # not the wall's: what else the machine does is not counted
    found = list(run_selftest())
    assert time.process_time() - start < 30
    assert [row.detail for row in found if not row.passed] == []
    assert {(row.operation, row.precision) for row in found} == {
        (name, precision) for name in OPERATIONS for precision in FORMATS
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_bounds_are_sharp(seed: int) -> None:
    """A result that is rounded once comes close to its bound: there is no room for a second error."""
    for row in run_selftest(batch_size=2, seed=seed):
        assert row.passed, row
        if row.precision in HALF and row.operation != "attention":
            assert row.error > 0.7, row


def _in_half(a: Tensor, b: Tensor, block: int) -> Tensor:
    """Partial sums kept in the format, as an accumulator of 16 bits does."""
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    for start in range(0, a.shape[-1], block):
        total = total + a[..., start : start + block] @ b[start : start + block]
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("block", "times"), [(1, 30), (16, 10), (128, 2)])
def test_a_sum_kept_in_half_is_found(block: int, times: float) -> None:
    found = rows({"matmul": lambda a, b: _in_half(a, b, block)}, batch_size=1)
    assert found["FP32"].passed
    for precision in HALF:
        assert not found[precision].passed
        assert found[precision].error > times
        assert "times the rounding bound" in found[precision].detail


def test_fp32_that_reads_its_operands_in_fewer_bits_is_found() -> None:
    def shortened(a: Tensor, b: Tensor) -> Tensor:
        return (a.bfloat16().float() @ b.bfloat16().float()).to(a.dtype)

    assert not rows({"matmul": shortened})["FP32"].passed


def test_a_sum_kept_in_half_is_found_on_an_accelerator_too() -> None:
    """There the bound is wider: partial sums may be exchanged in 16 bits, and matrix units truncate."""
    a, b = (x.half() for x in CASES["matmul"].make(1, torch.Generator().manual_seed(0)))
    there = device_arithmetic("matmul", torch.device("cuda"), torch.float16)
    exact = a.double() @ b.double()
    bound = cases.products(exact, exact.abs(), a.shape[-1], there)
    assert ((a @ b).double() - exact).abs().div(bound).max() < 0.5
    assert (_in_half(a, b, 1).double() - exact).abs().div(bound).max() > 10


def _without_maximum(x: Tensor) -> Tensor:
    terms = x.float().exp()
    return (terms / terms.sum(-1, keepdim=True)).to(x.dtype)


def _summed_in_half(x: Tensor) -> Tensor:
    terms = (x - x.amax(-1, keepdim=True)).exp()
    return terms / terms.sum(-1, keepdim=True)


def test_a_softmax_without_its_maximum_is_found() -> None:
    found = rows({"softmax": _without_maximum})
    assert [found[p].error for p in FORMATS] == [math.inf] * 3
    assert "NaN or Inf" in found["FP16"].detail


def test_a_softmax_summed_in_half_is_found() -> None:
    found = rows({"softmax": _summed_in_half})
    assert found["FP32"].passed
    assert not any(found[precision].passed for precision in HALF)


@pytest.mark.slow
def test_nan_at_a_realistic_batch_size_only_is_found() -> None:
    """The fault of the GTX 16 series: every small probe passes."""

    def faulty(x: Tensor, weight: Tensor) -> Tensor:
        result = OPERATIONS["convolution"](x, weight)
        if x.dtype == torch.float16 and len(x) >= 8:
            result[5, 3, 7, 7] = math.nan  # one element, and none of those that are compared
        return result

    assert all(row.passed for row in rows({"convolution": faulty}, batch_size=4).values())
    found = rows({"convolution": faulty}, batch_size=8)
    assert not found["FP16"].passed
    assert found["FP16"].detail == "1 of 1605632 elements are NaN or Inf"
    assert found["FP32"].passed
    assert found["BF16"].passed


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("layer norm", lambda x: functional.layer_norm(x, x.shape[-1:], eps=1e-2)),
        ("layer norm", lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
        ("batch norm", lambda x: functional.batch_norm(x, None, None, training=True)),
        (
            "attention",
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        ),
        ("attention", lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=0.12)),
    ],
    ids=["eps", "statistics-in-half", "batch-statistics-in-half", "masked", "scale"],
)
def test_other_faults_are_found(name: str, wrong: object) -> None:
    assert callable(wrong)
    assert not rows({name: wrong})["FP16"].passed


def test_an_operation_that_raises_is_a_failure_not_a_traceback() -> None:
    def missing(*_: Tensor) -> Tensor:
        raise RuntimeError("no kernel image is available for execution on the device\nmore")

    found = rows({"matmul": missing})
    assert found["FP32"].detail == "no kernel image is available for execution on the device"
    assert not found["FP32"].passed


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_batch_without_room_is_tested_with_fewer_elements(name: str) -> None:
    """A full device is not a wrong one, and what fits is still tested."""

    def full(*inputs: Tensor) -> Tensor:
        if inputs[0].dtype == torch.float32 and len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return OPERATIONS[name](*inputs)

    found = rows({name: full}, batch_size=9)
    assert all(row.passed for row in found.values()), found
    assert found["FP32"].size.startswith("[2, ")
    assert found["FP16"].size.startswith("[9, ")


def test_a_device_without_any_room_fails() -> None:
    def full(*_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    found = rows({"softmax": full}, batch_size=4)
    assert [found[p].detail for p in FORMATS] == ["CUDA out of memory."] * 3


@settings(deadline=None, max_examples=30)
@given(
    length=st.integers(1, 4096),
    precision=st.sampled_from(sorted(FORMATS)),
    seed=st.integers(0, 2**32),
)
def test_no_dot_product_breaks_its_bound(length: int, precision: str, seed: int) -> None:
    """Any length, with cancellation: the bound then rests on the sum of magnitudes."""
    dtype = FORMATS[precision]
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(16, length, generator=generator).to(dtype)
    b = torch.randn(length, 16, generator=generator).to(dtype)
    exact = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    bound = cases.products(exact, magnitude, length, Arithmetic(dtype))
    assert ((a @ b).double() - exact).abs().le(bound).all()


def test_global_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    list(run_selftest(batch_size=1, operations={"softmax": OPERATIONS["softmax"]}))
    assert torch.equal(before, torch.get_rng_state())
