"""Counts, lists and dtypes as findings write them."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def spoken(dtype: torch.dtype) -> str:
    """``"float16"``."""
    return str(dtype).removeprefix("torch.")


def counted(number: int, noun: str) -> str:
    """``"1 parameter is"``, ``"3 parameters are"``."""
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first names and how many more there are: ``"a, b, c and 5 more"``."""
    all_names = list(names)
    more = len(all_names) - most
    return ", ".join(all_names[:most]) + (f" and {more} more" if more > 0 else "")
