"""Published failures are reproduced where they were published, and measured; held-out rows are not healed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_rows_fail_as_published_and_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    options = ["--out", str(out), "--steps", "8", "--rounds", "1", "phi", "lora"]
    # In a process of its own: the command silences logs and warnings.
    command = [str(ROOT / "scripts/bench"), "famous", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for result in json.loads(out.read_text()):
        assert result["check"]["at_place"]
        assert result["check"]["bad"] == 8
        assert not result["held_out"]
        assert result["flops"]["bare"] < 0.5
        assert result["flops"]["fp32"] == 1
        assert result["error"]["bare"] is None  # not finite
        assert result["error"]["fp32"] == 0
        assert result["time"]["ours"] > 0
        assert result["memory"]["ours"] > 0
    table = out.with_suffix(".md").read_text()
    assert "| phi |" in table
    assert "| lora |" in table
    assert "of 2; median share" in table
    assert (
        "FP32 than upstream: 0 of 1" in table or "than upstream: 1 of 1" in table
    )  # lora has none


@pytest.mark.slow
def test_a_held_out_row_is_healed_only_if_asked_for(tmp_path: Path) -> None:
    from benchmarks.famous.command import main

    with pytest.raises(SystemExit, match="t5: not among"):
        main(["run", "--out", str(tmp_path / "results.json"), "t5"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_rows_and_the_page_agree() -> None:
    from benchmarks.famous.command import PAGE, ROWS

    text = PAGE.read_text("utf-8")
    assert len(ROWS) == 25
    assert len({row.number for row in ROWS.values()}) == 20
    assert 10 <= sum(row.held_out for row in ROWS.values()) <= 15
    assert all(f"| {name} |" in text for name in ROWS)


def test_a_pattern_matches_one_part_of_a_path() -> None:
    from benchmarks.famous.row import matches, matching

    assert matches("model.layers.3.norm", "model.layers.*.norm")
    assert not matches("model.layers.3.mlp.norm", "model.layers.*.norm")
    with pytest.raises(ValueError, match="matches no module"):
        list(matching(nn.Identity(), "layers.*"))


def test_shares_of_products_are_counted_by_dtype() -> None:
    from benchmarks.famous.measuring import ProductDtypes

    half, full = torch.ones(2, 2).half(), torch.ones(2, 2)
    with ProductDtypes() as products:
        half @ half
        full @ full
        full @ full
    assert products.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("islands", "lines", "verdict"),
    [
        ([], [], "none"),
        ([], ["x = y"], "line"),
        (["0.0", "1.0"], [], "published"),
        (["*.0"], [], "published"),
        (["0.0"], [], "part"),
        (["*.0", "0.1"], [], "more"),
        (["0"], [], "wider"),
        ([""], [], "wider"),
        (["0.1"], [], "other"),
    ],
)
def test_islands_are_compared_with_the_published_place(
    islands: list[str], lines: list[str], verdict: str
) -> None:
    from benchmarks.famous.measuring import verdict_of
    from benchmarks.famous.row import Row

    block = nn.Sequential(nn.Identity(), nn.Identity())
    model = nn.Sequential(block, nn.Sequential(nn.Identity()))
    row = Row("x", 0, "", lambda: model, lambda _: None, places=("*.0",))
    assert verdict_of(row, model, islands, lines) == verdict
