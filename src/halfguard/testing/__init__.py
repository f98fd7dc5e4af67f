"""Assertions for tests of your own: safe in 16 bits, and as good as in FP32."""

from __future__ import annotations

from halfguard.testing.assertions import assert_half_safe, assert_matches_fp32

__all__ = ["assert_half_safe", "assert_matches_fp32"]
