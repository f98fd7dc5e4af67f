"""Run single checks of the kit in their small size."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from halfguard.acceptance.kit import Check, run_acceptance
from halfguard.records.acceptance import AcceptanceCheck


def run_check(check: Check, device: str) -> AcceptanceCheck:
    """Return the result of one check."""
    return run_acceptance(device, size="small", checks=[check]).checks[0]


@contextmanager
def overridden(operation: str, key: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """Replace the kernel of an aten operation for one dispatch key."""
    library = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a kernel that is replaced
        library.impl(operation, kernel, allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
