"""Which tensors are not finite: of all kinds, in order, and with one read of the device."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from halfguard.formats import FP16
from halfguard.numerics.finite import all_finite, find_nonfinite, find_poison, has_nan
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (torch.complex64, torch.float8_e5m2)


def kinds(*numbers: float) -> list[Tensor]:
    """The numbers in every layout and dtype that can hold them, on the device."""
    dense = torch.tensor([1.0, *numbers])
    return [*(dense.to(dtype) for dtype in (*DTYPES, *OTHERS)), dense.cpu().to_sparse()]


@pytest.mark.on_standin
def test_every_kind_of_tensor_is_judged() -> None:
    healthy = [
        torch.ones(2, dtype=torch.long),
        *kinds(2.0),
        *(torch.tensor([1.0, torch.finfo(dtype).max], dtype=dtype) for dtype in DTYPES),
        torch.zeros(0),
        torch.ones((), device="meta"),
    ]
    assert all_finite(healthy)
    assert not has_nan(healthy)
    for number, code in ((math.nan, 1), (math.inf, 2), (-math.inf, 2)):
        for bad in kinds(number):
            tensors = [*healthy, bad]
            assert not all_finite(tensors)
            assert has_nan(tensors) == (code == 1)
            positions, codes = find_nonfinite(tensors)
            found = dict(zip(positions, codes.tolist(), strict=True))
            assert found.pop(len(healthy)) == code
            assert set(found.values()) == {0}
            assert 0 not in found, "an integer cannot be NaN"


def test_nothing_to_judge_is_finite() -> None:
    assert all_finite([])
    assert not has_nan([torch.ones(2, dtype=torch.int32)])


def test_one_read_for_many_tensors_and_none_for_the_codes() -> None:
    tensors = [torch.ones(3) for _ in range(50)]
    with OpCounter() as counter:
        find_nonfinite(tensors)
    assert counter.host_syncs == 0
    with OpCounter() as counter:
        all_finite(tensors)
    assert counter.host_syncs == 1


def test_what_does_not_fit_a_format_is_counted() -> None:
    tensors = {"a": torch.tensor([65519.0]), "b": torch.tensor([65520.0, -7e4, math.nan, math.inf])}
    [found] = find_poison(tensors, target=FP16)
    assert str(found) == "b (1 NaN, 1 infinite, 2 beyond 65504)"
    assert [str(one) for one in find_poison(tensors)] == ["b (1 NaN, 1 infinite)"]
    assert find_poison({"mask": torch.tensor([-math.inf])}, allow_infinite=["ma*"]) == []
