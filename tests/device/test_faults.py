"""A fault leaves no trace: bitwise the state before it, the step repeated in FP32, or an earlier state."""

from __future__ import annotations

import pytest

from tests.guard.test_faults import test_the_step_has_its_reaction  # noqa: F401

pytestmark = pytest.mark.usefixtures("repeatable")
