"""Explanations: the results, and each sentence checked against torch itself."""

from __future__ import annotations

import json
import math

import pytest
import torch

from halfguard.formats import ALL, BF16, FP8_E4M3FN, FP16, FP32
from halfguard.numerics.explain import explain, percent, show_number
from tests.support.cases import each


def sentence(text: str, beginning: str) -> str:
    found = [s for s in explain(text).sentences if s.startswith(beginning)]
    assert len(found) == 1, explain(text).sentences
    return found[0]


@each(
    ("text", "state"),
    [
        ("1", "exact"),
        ("inf", "exact"),
        ("0.1", "rounded"),
        ("6e-8", "subnormal"),
        ("2**-24", "exact"),
        ("1e-8", "underflow to 0"),
        ("65520", "overflow to inf"),
        ("300*300/300", "overflow to inf"),
        ("(1+1e-4)-1", "0: lost in a step"),
        ("nan", "NaN"),
        ("1e9-1e9", "NaN"),
    ],
)
def test_states_in_fp16(text: str, state: str) -> None:
    assert explain(text).rows[FP16].state == state


def test_results() -> None:
    explanation = explain(" 1-1e-4 ")
    assert explanation.text == "1-1e-4"
    assert list(explanation.rows) == list(ALL)
    row = explanation.rows[FP16]
    assert (row.stored, row.computed) == (1, 1)
    assert row.error == pytest.approx(1e-4, rel=1e-3)
    assert explanation.rows[FP8_E4M3FN].computed is None  # torch cannot add in FP8
    assert explain("0.1").rows[FP16].computed is None  # a number needs no computing
    assert explain("500").rows[FP8_E4M3FN].state == "overflow to NaN or 448"


def test_as_an_eps() -> None:
    zero = torch.zeros(1, dtype=torch.float16)
    assert "log(x + 1e-8) is still -inf" in sentence("1e-8", "As an eps")
    assert (zero + 1e-8).log().item() == -math.inf
    assert zero.clamp(min=1e-8).log().item() == -math.inf
    assert "larger than 2.98e-8" in sentence("10**-8", "As an eps")
    assert (zero + 2.98e-8).item() == 0
    assert (zero + 2.99e-8).item() > 0
    assert not any(s.startswith("As an eps") for s in explain("1e-6").sentences)


def test_as_a_divisor() -> None:
    zero = torch.zeros(1, dtype=torch.float16)
    assert "about 1.53e-5 or more" in sentence("1e-5", "As a divisor")
    assert (1 / (zero + 1e-5)).item() == math.inf
    assert (1 / (zero + 1.52e-5)).item() == math.inf
    assert math.isfinite((1 / (zero + 1.53e-5)).item())
    assert not any(s.startswith("As a divisor") for s in explain("1e-4").sentences)


def test_as_a_gradient() -> None:
    assert "2**2 makes it non-zero, and 2**13 makes it a normal" in sentence(
        "1e-8", "As a gradient"
    )
    assert torch.tensor(1e-8 * 2).half().item() == 0
    assert torch.tensor(1e-8 * 2**2).half().item() > 0
    assert 1e-8 * 2**12 < torch.finfo(torch.float16).tiny < 1e-8 * 2**13
    assert "2**10 makes it a normal" in sentence("6e-8", "As a gradient")
    assert 6e-8 * 2**9 < torch.finfo(torch.float16).tiny < 6e-8 * 2**10


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("-1e9", torch.float16), ("-65510", torch.float16), ("-1e39", torch.float32)],
)
def test_as_a_mask_fill(text: str, dtype: torch.dtype) -> None:
    said = sentence(text, "As a mask fill")
    scores, mask = torch.zeros(2, dtype=dtype), torch.tensor([True, True])
    with pytest.raises(RuntimeError, match="without overflow"):
        scores.masked_fill(mask, float(text))
    assert str(dtype).removeprefix("torch.") in said
    cast = torch.tensor(float(text)).half()
    assert f"gives {cast.item():g}" in said.replace("65504.0", "65504")
    assert ("softmax NaN" in said) == bool(cast.expand(2).softmax(0).isnan().all())
    cure = scores.masked_fill(mask, torch.finfo(dtype).min)
    assert cure.softmax(0).tolist() == [0.5, 0.5]


def test_a_fill_that_fits_is_no_mask_problem() -> None:
    assert not any("mask" in s for s in explain("-65504").sentences)
    assert not any("mask" in s for s in explain("-inf").sentences)


@each(
    ("text", "says"),
    [
        ("1-1e-4", "FP16 and BF16. In this direction an update must be larger than 0.000244"),
        ("1+1e-4", "larger than 0.000488 in FP16 and 0.00391 in BF16. Keep FP32"),
        ("1+1e-9", "5.96e-8 in FP32. FP32 loses it too."),
        ("1-1e-3", "1 does not change in BF16."),
    ],
)
def test_as_an_update(text: str, says: str) -> None:
    assert says in sentence(text, "As an update")


def test_what_an_update_needs() -> None:
    one = torch.ones(1, dtype=torch.float16)
    assert (one - 0.000244).item() == 1
    assert (one - 0.000245).item() < 1
    assert (one + 0.000488).item() == 1
    assert (one + 0.000489).item() > 1


def test_step_by_step() -> None:
    said = sentence("(1+1e-4)-1", "Step by step")
    assert said.startswith("Step by step in FP16 and BF16: 1+1e-4 = 1, then (1+1e-4)-1 = 0.")


def test_overflow() -> None:
    assert "FP16 (largest value 65504)" in sentence("65504*2", "Its magnitude")
    assert "BF16 has the range of FP32 and holds 131072" in sentence("65504*2", "FP16 gives inf")
    assert explain("65504*2").rows[BF16].stored == 131072


def test_as_an_integer() -> None:
    assert "2048 in FP16 and 256 in BF16" in sentence("2049", "As a count")
    assert "in FP16" not in sentence("257", "As a count")
    assert "16777216 in FP32" in sentence("16777217", "As a count")


@each(
    ("text", "says"),
    [
        ("1", "FP16, BF16 and FP32 hold it exactly."),
        (
            "0.1",
            "Only digits are lost. The error is 0.024% in FP16, 0.098% in BF16 and 1.5e-06% in FP32.",
        ),
        ("1e9-1e9", "It becomes nan in FP16."),
        ("-1e-8*1", "It becomes 0 in FP16."),
    ],
)
def test_when_nothing_else_is_to_say(text: str, says: str) -> None:
    assert explain(text).sentences == [says]


def test_one_nan_spoils_a_sum() -> None:
    for text in ("nan", "inf", "-inf", "inf-inf"):  # a difference of infinities is no update
        assert "makes a sum, mean or gradient norm NaN" in explain(text).sentences[0]
    assert torch.tensor([1.0, math.nan]).sum().isnan()


@each(
    ("x", "text"),
    [
        (2048.0, "2048"),
        (1e-8, "1e-8"),
        (-0.0, "0"),
        (math.inf, "inf"),
        (0.0009765625, "0.0009765625"),
    ],
)
def test_numbers_for_people(x: float, text: str) -> None:
    assert show_number(x) == text
    assert json.loads(text.replace("inf", "Infinity")) == x


def test_percentages_for_people() -> None:
    assert [percent(e) for e in (0.0, 1.0, 0.00024, None, math.inf)] == [
        "0%",
        "100%",
        "0.024%",
        "",
        "",
    ]
    assert explain("1e400").rows[FP32].error == math.inf
