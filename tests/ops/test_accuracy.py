"""The yardstick itself: it must agree with correct rounding, and it must be able to say no."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.ops.accuracy import all_finite, all_values, measure, ulp_error
from benchmarks.ops.references import UNARY, TensorMap, UnaryOp
from benchmarks.tables import ops
from torch import Tensor

from tests.support.cases import each

from .helper import HALF


def round_correctly(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 to half in one rounding: the nearest of all values, ties to the even bit pattern."""
    if dtype is torch.float16:
        with np.errstate(over="ignore"):
            return torch.from_numpy(exact.numpy().astype(np.float16))
    beyond = torch.tensor([2.0**128], dtype=torch.float64)  # the value that bfloat16 calls inf
    table = torch.cat([-beyond, all_finite(dtype).double(), beyond])
    above = torch.searchsorted(table, exact).clamp(1, len(table) - 1)
    low, high = table[above - 1], table[above]
    tie_goes_up = low.to(dtype).view(torch.int16) % 2 != 0
    up = (high - exact < exact - low) | ((high - exact == exact - low) & tie_goes_up)
    return torch.where(up, high, low).to(dtype)


def test_every_bit_pattern_is_there_once() -> None:
    for dtype in HALF:
        patterns = all_values(dtype).view(torch.int16).int().sort().values
        assert torch.equal(patterns, torch.arange(-(2**15), 2**15, dtype=torch.int32))


@pytest.mark.parametrize("dtype", HALF)
def test_a_correctly_rounded_value_is_at_most_half_an_ulp_away(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    low, high = (-26, 17) if dtype is torch.float16 else (-135, 129)
    exponent = torch.empty(50_000, dtype=torch.float64).uniform_(low, high, generator=generator)
    exact = 2.0**exponent
    rounded = round_correctly(exact, dtype)
    in_range = exact < 2.0 ** (high - 1)
    assert ulp_error(rounded, exact)[in_range].max() <= 0.5
    assert rounded[~in_range].isinf().all()
    assert (ulp_error(rounded, exact)[~in_range] == 0).all()


@each("dtype", HALF)
@each("unary", UNARY)
def test_results_are_the_correctly_rounded_or_next_to_it(
    unary: UnaryOp, dtype: torch.dtype
) -> None:
    x = all_finite(dtype)
    truth = round_correctly(unary.reference(x), dtype).view(torch.int16).int()
    found = unary.op(x).view(torch.int16).int()
    # Same sign: bit patterns of neighbours differ by 1. (+0 and -0 count as one value.)
    apart = torch.where(
        (truth == found) | (unary.op(x) == 0) & (truth << 17 == 0), 0, truth - found
    )
    assert apart.abs().max() <= 1


@each(
    ("result", "exact", "ulps"),
    [
        (1.0, 1.0, 0.0),
        (1.0009765625, 1.0, 1.0),
        (0.0, 2.0**-24, 1.0),  # a lost subnormal
        (2.0**-24, 2.0**-25, 0.5),
        (math.inf, 65519.0, 17 / 32),  # inf stands for 65536
        (65504.0, 65536.0, 1.0),
        (65504.0, 1e30, 1.0),
        (math.inf, 1e30, 0.0),
        (-math.inf, 1e30, 4096.0),
        (math.nan, 1.0, math.inf),
    ],
)
def test_ulps_of_known_cases(result: float, exact: float, ulps: float) -> None:
    error = ulp_error(torch.tensor([result]).half(), torch.tensor([exact]).double())
    assert error.item() == ulps


@each(
    ("name", "naive"),
    [
        ("log", lambda x: (x + 1e-8).log()),
        ("sqrt", torch.sqrt),
        ("rsqrt", lambda x: (x + 1e-8).rsqrt()),
        ("exp", torch.exp),
        ("logsigmoid", lambda x: (x.sigmoid() + 1e-8).log()),
        ("soft_cap(30)", lambda x: 30 * (x / 30).tanh()),
        ("soft_cap(30)", lambda x: (30 * (x.float() / 30).tanh()).to(x.dtype)),
        ("soft_cap(30)", lambda x: x.clamp(-30, 30)),
        ("logsigmoid", lambda x: F.sigmoid(x.float()).log().to(x.dtype)),
    ],
)
@each("dtype", HALF)
def test_naive_forms_are_caught(name: str, naive: TensorMap, dtype: torch.dtype) -> None:
    (unary,) = (unary for unary in UNARY if unary.name == name)
    wrong = UnaryOp(name, naive, unary.reference, unary.derivative, unary.cap)
    # A loss scale multiplies the gradient, and what float32's 1 - tanh² has lost with it.
    found = measure(wrong, all_finite(dtype), upstream=1024.0)
    assert max(found.forward.error, found.gradient.error) > 1, str(found)


def test_the_worst_case_is_named() -> None:
    off_at_two = UnaryOp(
        "off",
        lambda x: torch.where(x == 2, x * 1.5, x),
        lambda x: x.double(),
        lambda x: torch.ones_like(x, dtype=torch.float64),
        "",
    )
    found = measure(off_at_two, all_finite(torch.float16))
    assert found.forward.at == 2
    assert str(found.forward) == "512 ulp at x = 2.0"
    assert found.gradient.error == 512


def test_every_family_is_measured() -> None:
    names = [unary.name.partition("(")[0] for unary in UNARY]
    assert sorted(names) == ["exp", "log", "logsigmoid", "rsqrt", "soft_cap", "sqrt"]


# -- the table in the reference page is the one that is measured, and its check can fail


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Copy the page, to be read and written in place of the real one."""
    page = tmp_path / "ops.md"
    page.write_text(ops.TABLE[0].read_text("utf-8"), "utf-8")
    monkeypatch.setattr(ops, "TABLE", (page, ops.TABLE[1]))
    return page


def test_a_wrong_page_is_noticed_and_rewritten(page: Path) -> None:
    right = page.read_text("utf-8")
    assert ops.update(check=True) == []
    edits = {
        ("| `log` | float16 | 0.500 |", "| `log` | float16 | 1.200 |"): "exceeds 1 ulp",
        ("| `log` | float16 | 0.500 |", "| `ln` | float16 | 0.500 |"): "other operations",
        ("x > log(largest): largest", "none"): "other operations",
    }
    for edit, complaint in edits.items():
        assert edit[0] in right
        page.write_text(right.replace(*edit), "utf-8")
        assert complaint in " ".join(ops.update(check=True)), edit
        assert ops.update(check=False) == []
        assert ops.update(check=True) == []
        assert page.read_text("utf-8").startswith(right.partition("<!-- ops_table: begin")[0])


def test_a_page_without_markers_is_named(page: Path) -> None:
    page.write_text("nothing here", "utf-8")
    with pytest.raises(SystemExit, match=r"ops\.md lacks the lines"):
        ops.update(check=True)
