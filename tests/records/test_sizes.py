"""Amounts of memory as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cases import each

from halfguard.errors import UsageError
from halfguard.records.sizes import format_bytes, parse_bytes


@each(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("1.5g", 15 * 10**8),
        ("4096", 4096),
        ("1kb", 1000),
    ],
)
def test_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@given(st.integers(0, 10**15))
def test_what_is_shown_can_be_read_back(count: int) -> None:
    shown = format_bytes(count)
    assert parse_bytes(shown) == pytest.approx(count, rel=0.005)
    assert len(shown) <= 7


@each("text", ["", "GB", "-1GB", "two GB", "2 XB", "1e9"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match="not an amount of memory"):
        parse_bytes(text)
