"""``halfguard compare``: what it prints and saves, its exit code, and its answers to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import rich.console  # noqa: F401 - its first import draws from Python's random generator

from halfguard.comparison.compare import LoggedComparison
from halfguard.records.study import VerdictLabel
from tests.cli.command_result import Run
from tests.comparison.logs import write_csv, write_fp32_and_fp16


def test_it_prints_verdict_and_pairs(tmp_path: Path, halfguard: Run) -> None:
    write_fp32_and_fp16(tmp_path / "runs", 0.0)
    result = halfguard("compare", "runs/fp32", "runs/fp16", "--metric", "val_loss")
    assert result.exit_code == 0, result.err
    assert result.out.startswith("val_loss of fp16 against fp32: fp16 PASSES\n")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["seed", "fp32", "fp16"] in lines
    assert ["1", "1.1", "1.09945"] in lines
    assert "Seeds were read from: setting seed (10 runs)." in result.out
    assert "lower is better" in result.out


def test_json_is_one_record(tmp_path: Path, halfguard: Run) -> None:
    places = write_fp32_and_fp16(tmp_path, 0.12)
    result = halfguard("compare", *places, "--metric", "val_loss", "--json")
    assert result.exit_code == 1
    assert json.loads(result.out)["kind"] == "comparison"
    record = LoggedComparison.from_json(result.out)
    assert record.verdict.word is VerdictLabel.FAIL
    assert {(run.group, run.seed) for run in record.runs} == {
        (group, seed) for group in ("fp32", "fp16") for seed in range(5)
    }


def test_pages_are_saved(tmp_path: Path, halfguard: Run) -> None:
    places = write_fp32_and_fp16(tmp_path, 0.0)
    options = ["--metric", "val_loss", "--html", "page.html", "--markdown", "page.md"]
    assert halfguard("compare", *places, *options).exit_code == 0
    html, markdown = (tmp_path / "page.html").read_text(), (tmp_path / "page.md").read_text()
    assert html.count("<svg") == 1  # the curves
    assert "| seed | fp32 | fp16 |" in markdown
    assert "Return to FP32" not in html


def test_names_from_a_log_cannot_control_the_terminal(tmp_path: Path, halfguard: Run) -> None:
    for group in ("fp32", "fp16"):
        for seed in range(3):
            write_csv(tmp_path / group / f"seed{seed}\x1b[31m<b>", [1.0 + seed / 8])
    options = ["--metric", "val_loss", "--html", "page.html"]
    result = halfguard("compare", tmp_path / "fp32", tmp_path / "fp16", *options)
    assert result.exit_code == 0, result.err
    assert "\x1b[31m" not in result.out
    assert "<b>" not in (tmp_path / "page.html").read_text()
