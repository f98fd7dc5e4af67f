"""Fixtures for the tests of the adapters."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove at the end what transformers 4 sets for its whole process."""
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_IPEX"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
