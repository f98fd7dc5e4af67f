"""Assertions for tests of your own: safe in 16 bits, as good as in FP32, and unharmed by faults."""

from __future__ import annotations

from halfguard.testing.assertions import assert_half_safe, assert_matches_fp32
from halfguard.testing.fault_injection import (
    FaultOutcome,
    Loop,
    assert_survives_faults,
    inject_faults,
)
from halfguard.testing.faults import FAULTS, Fault, LoopParts

__all__ = [
    "FAULTS",
    "Fault",
    "FaultOutcome",
    "Loop",
    "LoopParts",
    "assert_half_safe",
    "assert_matches_fp32",
    "assert_survives_faults",
    "inject_faults",
]
