"""A small part of what ``scripts/soak lint`` runs."""

from __future__ import annotations

import pytest

from tests.lint.fuzz import fuzz

pytestmark = pytest.mark.slow


def test_nothing_raises_and_nothing_hangs() -> None:
    assert fuzz(500).findings > 100
