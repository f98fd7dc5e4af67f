"""Random corruptions are refused, and kill -9 leaves the last good file. ``scripts/soak`` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints.corruption import kill_while_saving, try_corruptions

pytestmark = pytest.mark.usefixtures("seed")


def test_no_corruption_is_saved(tmp_path: Path) -> None:
    try_corruptions(tmp_path, 40, seed=1)


@pytest.mark.slow
def test_kill_dash_nine_leaves_the_last_good_file(tmp_path: Path) -> None:
    assert kill_while_saving(tmp_path, 10, seed=2) > 0
