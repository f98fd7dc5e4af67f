"""Expressions: exact values, values step by step, and everything that is refused."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfguard.errors import UsageError
from halfguard.formats import BF16, FP16, FP32, Format
from halfguard.numerics.explain import evaluate_exactly, evaluate_in, parse
from tests.support.cases import each


def exactly(text: str) -> Decimal:
    return evaluate_exactly(parse(text), text)


def half(text: str, f: Format = FP16) -> float:
    return evaluate_in(parse(text), text, f)[0]


@each(
    ("text", "value"),
    [
        ("1e-8", Fraction(1, 10**8)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("(1+1e-4)-1", Fraction(1, 10**4)),
        ("-2**2", Fraction(-4)),
        ("2**-25", Fraction(1, 2**25)),
        ("2**3**2", Fraction(512)),
        ("1/4", Fraction(1, 4)),
        ("+1_000.5", Fraction(2001, 2)),
        ("0x10", Fraction(16)),
        ("sqrt(0.25)", Fraction(1, 2)),
        ("4**0.5", Fraction(2)),
        ("1e400 / 1e399", Fraction(10)),
        ("exp(0) + log(1)", Fraction(1)),
        ("sigmoid(0)", Fraction(1, 2)),
        ("1/0", math.inf),
        ("log(0)", -math.inf),
        ("inf - 1e400", math.inf),
        ("0**-1", math.inf),
        ("0 * 5", Fraction(0)),
    ],
)
def test_exact_values(text: str, value: Fraction | float) -> None:
    found = exactly(text)
    assert (Fraction(found) if found.is_finite() else float(found)) == value


@each("text", ["nan", "inf - inf", "0 * inf", "0/0", "sqrt(-1)", "(-8)**0.5"])
def test_nan(text: str) -> None:
    assert exactly(text).is_nan()


@settings(deadline=None)
@given(st.floats(-30, 30, allow_subnormal=False))
def test_functions_agree_with_float64(x: float) -> None:
    sigmoid = torch.sigmoid(torch.tensor(x, dtype=torch.float64)).item()
    for text, expected in {
        f"exp({x})": math.exp(x),
        f"log({abs(x) + 2})": math.log(abs(x) + 2),
        f"sqrt({abs(x)})": math.sqrt(abs(x)),
        f"sigmoid({x})": sigmoid,
    }.items():
        assert float(exactly(text)) == pytest.approx(expected, rel=1e-13, abs=1e-300)


def test_step_by_step() -> None:
    assert half("(1+1e-4)-1") == 0
    assert half("300*300/300") == math.inf
    assert half("300*300/300", BF16) == 300
    assert half("1/-1e-8") == -math.inf  # the sign of a vanished number lives on
    text = "(1+1e-4)-1"
    assert evaluate_in(parse(text), text, FP16) == (0, [("1+1e-4", 1), (text, 0)])


@pytest.mark.parametrize("sign", ["+", "-", "*", "/"])
@settings(deadline=None)
@given(a=st.floats(-1e5, 1e5), b=st.floats(-1e5, 1e5))
def test_a_step_is_what_torch_computes(sign: str, a: float, b: float) -> None:
    for f, dtype in ((FP16, torch.float16), (BF16, torch.bfloat16), (FP32, torch.float32)):
        x, y = (torch.tensor(f.round(v)).to(dtype) for v in (a, b))
        expected = {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[sign].item()
        assert half(f"({a!r}){sign}({b!r})", f) == pytest.approx(
            expected, rel=0, abs=0, nan_ok=True
        )


@each(
    ("text", "says"),
    [
        ("", "expression is empty"),
        ("1+x", "'x' is not known, at character 3"),
        ("__import__('os')", "is not allowed"),
        ("print(1)", "'print(1)' is not known"),
        ("1^2", "A power is written"),
        ("(1", "not an arithmetic expression"),
        ("1 if 2 else 3", "not known"),
        ("1or 2", "not known"),
        ("True", "not known"),
        ("1j", "not known"),
        ("7//2", "not known"),
        ("sqrt", "not known"),
        ("sqrt()", "not known"),
        ("inf.real", "not known"),
        ("1\n+1", "is not allowed"),
        ("é", "is not allowed"),
        ("1+" * 200 + "1", "401 characters"),
        ("(" * 99 + "1", "not an arithmetic expression"),
        ("1e9999", "too large or too small"),
        ("9**9**9**9", "too large or too small"),
        ("exp(1e9)", "too large or too small"),
        ("1e-999**9", "too large or too small"),
        ("sigmoid(-1e5)", "too large or too small"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        exactly(text.strip())
    assert says in str(caught.value)
    assert "\n" not in caught.value.message


@settings(deadline=None)
@given(st.text("0123456789.e+-*/() sqrtexploginf", max_size=60))
def test_any_text_is_answered_or_refused(text: str) -> None:
    begin = time.process_time()
    try:
        exactly(text)
        half(text)
    except UsageError:
        pass
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    "text", ["*".join(["9e999**9"] * 5 + ["1"]), "1.0000001**1000000", "exp(9999)"]
)
def test_heavy_work_is_bounded(text: str) -> None:
    begin = time.process_time()
    try:
        exactly(text)
        half(text, FP32)
    except UsageError:
        pass
    assert time.process_time() - begin < 1
