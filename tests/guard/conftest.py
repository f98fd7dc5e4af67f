"""Fixtures of the guard's tests."""

from __future__ import annotations

import pytest

from halfguard.guard.stepping.step_state import StepState


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step be one of those between two looks, which are nearly all of a run."""
    monkeypatch.setattr(StepState, "_is_due", lambda state: state._module_count < 0)
