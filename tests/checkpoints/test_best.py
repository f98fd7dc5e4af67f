"""The best by a metric of one's own, also after a restart, and never a poisoned one."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import halfguard as hg
from halfguard.errors import PoisonedStateError, RecordError, UsageError
from tests.checkpoints.helper import files

pytestmark = pytest.mark.usefixtures("seed")


def state_of(number: float) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((3,), float(number))},
        "ema": {"w": torch.full((3,), float(number))},
    }


def saved(path: Path) -> Any:
    return torch.load(path, weights_only=True)


values = st.lists(st.floats(), max_size=12)


@settings(max_examples=30)
@given(values=values, mode=st.sampled_from(["min", "max"]))
def test_the_first_of_the_best_finite_values_is_kept(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], mode: Any
) -> None:
    path = tmp_path_factory.mktemp("best") / "best.pt"
    keeper = hg.BestKeeper(path, "perplexity", mode)
    for number, value in enumerate(values):
        keeper.update(state_of(number), value)
        if number % 3 == 2:
            keeper = hg.BestKeeper(path, "perplexity", mode)  # a restart
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert not path.exists()
        assert keeper.value is None
        return
    best = min(finite) if mode == "min" else max(finite)
    assert keeper.value == best
    assert saved(path)["best"] == {"metric": "perplexity", "mode": mode, "value": best}
    assert saved(path)["model"]["w"][0] == values.index(best)


def test_nan_never_wins_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = hg.BestKeeper(tmp_path / "best.pt", "perplexity", "min")
    with caplog.at_level(logging.WARNING, "halfguard"):
        assert not keeper.update(state_of(1), torch.tensor(torch.nan))
    assert "perplexity is nan" in caplog.text
    assert keeper.update(state_of(1), torch.tensor(7.0))
    assert not keeper.update(state_of(2), float("-inf"))
    assert keeper.value == 7.0


@pytest.mark.parametrize("part", ["model", "ema"])
def test_a_poisoned_state_never_wins(tmp_path: Path, part: str) -> None:
    keeper = hg.BestKeeper(tmp_path / "best.pt", "perplexity", "min")
    keeper.update(state_of(1), 9.0)
    before = files(tmp_path)
    bad = state_of(2)
    bad[part]["w"][1] = torch.nan
    with pytest.raises(PoisonedStateError, match=rf"{part}\.w"):
        keeper.update(bad, 8.0)
    assert files(tmp_path) == before
    assert keeper.value == 9.0
    assert keeper.update(state_of(3), 8.5)  # so 8.0 did not count


def test_the_storage_format_is_respected(tmp_path: Path) -> None:
    keeper = hg.BestKeeper(tmp_path / "best.pt", "accuracy", "max", dtype=torch.float16)
    assert keeper.update({"model": nn.Linear(2, 1)}, 0.5)
    assert saved(tmp_path / "best.pt")["model"]["weight"].dtype is torch.float16
    with pytest.raises(PoisonedStateError, match="beyond 65504"):
        keeper.update(state_of(1e6), 0.6)


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    hg.BestKeeper(path, "perplexity", "min").update(state_of(1), 9.0)
    with pytest.raises(UsageError, match=r"by perplexity \(min\), not by accuracy \(max\)"):
        hg.BestKeeper(path, "accuracy", "max")
    torch.save({"w": torch.ones(1)}, path)
    with pytest.raises(UsageError, match="BestKeeper did not write it"):
        hg.BestKeeper(path, "perplexity", "min")
    path.write_bytes(b"torn")
    with pytest.raises(RecordError, match="cannot be read"):
        hg.BestKeeper(path, "perplexity", "min")


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode='lower'"):
        hg.BestKeeper(tmp_path / "best.pt", "loss", "lower")  # type: ignore[arg-type]
    keeper = hg.BestKeeper(tmp_path / "best.pt", "loss", "min")
    with pytest.raises(UsageError, match="must be a mapping"):
        keeper.update(nn.Linear(1, 1), 1.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="without the key 'best'"):
        keeper.update({"best": 1}, 1.0)
