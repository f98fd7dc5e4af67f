"""Assertions for tests of your own: a model trains safely in 16 bits, and as well as in FP32."""

from __future__ import annotations

from halfguard.testing.half_safe import assert_half_safe
from halfguard.testing.matches_fp32 import assert_matches_fp32

__all__ = ["assert_half_safe", "assert_matches_fp32"]
