"""Two real ranks over gloo: which scaler keeps them together, and what doctor says of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.diagnosis.model.checks.sharded", str(rank), str(folder)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=720)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codes", "scales"),
    [
        ("fsdp1-plain-scaler", ["HD111"], [65536.0, 32768.0]),  # the ranks have parted
        ("fsdp1-cured", [], [32768.0, 32768.0]),
        ("fsdp2-plain-scaler", [], [32768.0, 32768.0]),
        ("fsdp2-early-optimizer", ["HD106"], [None, None]),
    ],
)
def test_two_ranks(
    name: str, codes: list[str], scales: list[float | None], ranks: list[dict[str, Any]]
) -> None:
    results = [rank[name] for rank in ranks]
    assert [result["codes"] for result in results] == [codes, codes]
    assert [result["got"] for result in results] == ["fp16-mixed", "fp16-mixed"]
    assert [result["scale"] for result in results] == scales
