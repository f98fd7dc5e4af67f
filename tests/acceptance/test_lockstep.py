"""Ranks that act apart, differ, fail or hang are found; test_kit runs two real ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from halfguard.acceptance import lockstep
from halfguard.acceptance.setting import SMALL, NotRunError, Setting
from tests.acceptance.helper import run_check

FAULT = "bad_batch on rank 1"
GOOD: dict[str, Any] = {
    "faults": {FAULT: ["skip", "bad_batch"]},
    "expected": {FAULT: ["skip", "bad_batch"]},
    "digest": "a",
    "difference": "",
    "steps": 10,
}


def judge(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> str:
    monkeypatch.setattr(lockstep, "_run_ranks", lambda setting, backend: list(answers))
    return run_check(lockstep, "cpu").reason


def changed(**values: Any) -> dict[str, Any]:
    return copy.deepcopy(GOOD) | values


def test_the_answers_of_the_ranks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(monkeypatch, GOOD, GOOD) == ""
    apart = changed(faults={FAULT: ["apply", "None"]})
    assert "acted differently" in judge(monkeypatch, GOOD, apart)
    assert "instead of ['skip', 'bad_batch']" in judge(monkeypatch, apart, apart)
    assert "the weights of the ranks differ" in judge(monkeypatch, GOOD, changed(digest="b"))
    assert "1 of 5 values" in judge(monkeypatch, GOOD, changed(difference="1 of 5 values differ"))


@pytest.mark.slow
def test_a_rank_that_fails_or_hangs_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "SECONDS", 0.05)
    assert "a rank did not finish" in run_check(lockstep, "cpu").reason
    monkeypatch.setattr(lockstep, "SECONDS", 120.0)
    monkeypatch.setattr(lockstep, "_backend", lambda setting: "nonsense")
    assert "a rank failed" in run_check(lockstep, "cpu").reason


def test_one_gpu_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    setting = Setting(torch.device("cuda"), SMALL, tmp_path)
    with pytest.raises(NotRunError, match="It needs 2 GPUs; this machine has 1"):
        list(lockstep.run(setting))
