"""A fault leaves no trace: bitwise the state before it, the step repeated in FP32, or an earlier state."""

from __future__ import annotations

import pytest

from tests.guard.test_faults import (  # noqa: F401
    test_halt,
    test_retry,
    test_roll_back,
    test_skip,
)

pytestmark = pytest.mark.usefixtures("repeatable")
