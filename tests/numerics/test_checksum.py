"""Equal bits have equal checksums, and a flipped bit anywhere has not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halfguard.numerics import tensor_rows
from halfguard.numerics.checksum import checksums, combine
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 5), (), (0,), (257,), (4, 2, 2)]
    made = [torch.randn(s, generator=generator).to(d) for d in DTYPES for s in shapes]
    return [*made, torch.randn(5, 7, generator=generator).t()]


def flipped(tensor: Tensor, element: int, bit: int) -> Tensor:
    copy = tensor.clone().contiguous()
    bits = copy.view(-1).view(INTEGERS[copy.element_size()])
    mask = torch.tensor(1 << bit if bit < 8 * copy.element_size() - 1 else -(1 << bit))
    bits[element] = torch.bitwise_xor(bits[element], mask.to(bits.dtype))
    return copy.view(tensor.shape)


@pytest.mark.on_standin
@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1000), st.data())
def test_one_flipped_bit_changes_one_checksum(seed: int, data: st.DataObject) -> None:
    before = tensors(seed)
    chosen = data.draw(st.sampled_from([i for i, t in enumerate(before) if t.numel()]))
    width = 1 if before[chosen].dtype is torch.bool else 8 * before[chosen].element_size()
    element = data.draw(st.integers(0, before[chosen].numel() - 1))
    bit = data.draw(st.integers(0, width - 1))
    after = list(before)
    after[chosen] = flipped(before[chosen], element, bit)
    first, second = checksums(before), checksums(after)
    assert (first != second).nonzero().view(-1).tolist() == [chosen]
    assert combine(first) != combine(second)
    assert torch.equal(first, checksums([tensor.clone() for tensor in before]))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(DTYPES[:5]), st.data())
def test_two_flipped_bits_do_not_cancel(dtype: torch.dtype, data: st.DataObject) -> None:
    before = [torch.ones(700, dtype=dtype), torch.ones(700, dtype=dtype)]
    width = 8 * before[0].element_size()
    bit = data.draw(st.sampled_from([width - 1, data.draw(st.integers(0, width - 1))]))
    place = st.tuples(st.integers(0, 1), st.integers(0, 699))
    after = list(before)
    for which, element in data.draw(st.sets(place, min_size=2, max_size=2)):
        after[which] = flipped(after[which], element, bit)
    assert combine(checksums(before)) != combine(checksums(after))


def test_changes_that_keep_a_sum_are_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, generator=generator, dtype=torch.float64)
    pairs = [
        (x, -x),
        (torch.tensor([3, 5]), torch.tensor([4, 4])),
        (torch.randperm(200, generator=generator), torch.arange(200)),
    ]
    for one, other in pairs:
        assert checksums([one]) != checksums([other])


def test_rows_exchanged_between_tensors_are_seen() -> None:
    tensors = [torch.full((8 * tensor_rows.ROW_LENGTH,), float(i)) for i in range(8)]
    for first, second in ((1, 3), (2, 5), (0, 7), (3, 1)):
        after = [tensor.clone() for tensor in tensors]
        rows = [tensor.view(8, -1) for tensor in after]
        kept = rows[first][second].clone()
        rows[first][second] = rows[second][first]
        rows[second][first] = kept
        assert combine(checksums(tensors)) != combine(checksums(after))


def test_a_checksum_depends_on_its_tensor_alone() -> None:
    some = tensors(1)
    assert torch.equal(checksums(some), torch.cat([checksums([tensor]) for tensor in some]))
    assert torch.equal(checksums(some).flip(0), checksums(some[::-1]))


def test_order_of_rows_and_of_tensors_counts() -> None:
    x = torch.arange(1000.0)
    assert checksums([x])[0] != checksums([x.roll(256)])[0]  # rows of 256 elements, moved
    assert checksums([x])[0] != checksums([torch.cat([x[:256].roll(2), x[256:]])])[0]
    y = x + 1
    assert combine(checksums([x, y])) != combine(checksums([y, x]))


def test_bits_count_not_values() -> None:
    zeros = torch.tensor([0.0, -0.0])
    assert checksums([zeros[:1]])[0] != checksums([zeros[1:]])[0]
    nan = torch.tensor([float("nan")])
    assert checksums([nan])[0] == checksums([nan.clone()])[0]
    assert checksums([torch.ones(3, dtype=torch.complex128)]).shape == (1,)


def test_passes_do_not_change_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [torch.full((40,), float(i)) for i in range(10)]
    after = [tensor.clone() for tensor in before]
    after[7][3] += 1
    monkeypatch.setattr(tensor_rows, "PASS_ELEMENTS", 100)
    assert (checksums(before) != checksums(after)).nonzero().view(-1).tolist() == [7]


@pytest.mark.slow
def test_operations_do_not_grow_with_tensors() -> None:
    def operations(count: int) -> int:
        some = [torch.ones(5) for _ in range(count)]
        with OpCounter() as counter:
            combine(checksums(some))
        assert counter.host_syncs == 0
        return int(counter.total)

    assert operations(10) == operations(2000) < 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_tensors_whose_elements_all_change_alike_differ(dtype: torch.dtype) -> None:
    """A counter of visits goes from 0 to 1 in every place."""
    for count in (1, 16, 512, 768 * 768, 2**18):
        sums = [
            checksums([torch.full((count,), v, dtype=dtype)]).item() for v in (0, 1, 2, 3, 4, 8)
        ]
        assert len(set(sums)) == 6, count
