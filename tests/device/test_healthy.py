"""A healthy guarded run is bitwise the bare loop: weights, buffers, optimizer state, loss scale."""

from __future__ import annotations

import pytest

from tests.guard import test_healthy
from tests.guard.test_healthy import (  # noqa: F401
    test_bitwise_the_bare_loop,
    test_other_precisions_too,
)

pytestmark = pytest.mark.usefixtures("repeatable")


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("full", False):
        monkeypatch.setattr(test_healthy, "STEPS", 30)
