"""A small part of what ``scripts/soak lint`` runs."""

from __future__ import annotations

from tests.lint.fuzz import fuzz


def test_nothing_raises_and_nothing_hangs() -> None:
    assert fuzz(500).findings > 100
