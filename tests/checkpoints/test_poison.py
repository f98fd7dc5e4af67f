"""Random corruptions are refused, and kill -9 leaves the last good file. ``scripts/soak`` runs many."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import halfguard as hg
from halfguard.errors import PoisonedStateError
from tests.checkpoints.corruption import kill_while_saving, try_corruptions

pytestmark = pytest.mark.usefixtures("seed")


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_no_corruption_is_saved(tmp_path: Path, count: int) -> None:
    try_corruptions(tmp_path, count, seed=count)


def test_weights_that_change_while_they_are_saved(tmp_path: Path) -> None:
    """Another thread poisons and heals the weights all the time; no file has any of it."""
    weights, path = [torch.ones(20_000) for _ in range(20)], tmp_path / "a.pt"
    ends = threading.Event()

    def disturb() -> None:
        while not ends.is_set():
            for value in (torch.nan, 1.0):
                for weight in weights:
                    weight[17] = value

    other = threading.Thread(target=disturb)
    other.start()
    refused = 0
    try:
        for _ in range(30):
            try:
                hg.save_checkpoint(path, {"model": weights})
            except PoisonedStateError:
                refused += 1
            if path.exists():
                saved = torch.load(path, weights_only=True)["model"]
                assert all(weight.isfinite().all() for weight in saved)
    finally:
        ends.set()
        other.join()
    assert refused > 0
    assert [file.name for file in tmp_path.iterdir()] in ([], ["a.pt"])


@pytest.mark.slow
def test_kill_dash_nine_leaves_the_last_good_file(tmp_path: Path) -> None:
    assert kill_while_saving(tmp_path, 10, seed=2) > 0
