"""The kit runs to the end on the CPU and on the stand-in accelerator, and a check that raises has failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfguard.acceptance import CHECKS, run_acceptance
from halfguard.acceptance.setting import Cases, NotRunError, Setting
from halfguard.errors import UsageError
from halfguard.records.acceptance import AcceptanceCase, AcceptanceRecord

NAMES = [check.NAME for check in CHECKS]


@pytest.mark.slow
def test_the_command_runs_every_check_on_the_cpu_and_writes_record_and_page(tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "cpu.json"
    options = ["doctor", "--acceptance", "--device", "cpu", "--quick", "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", "from halfguard.cli import main; main()", *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = AcceptanceRecord.from_json(out.read_text())
    assert [check.name for check in record.checks] == NAMES
    assert {check.name: check.status for check in record.checks} == dict.fromkeys(NAMES, "passed")
    assert (record.device, record.size) == ("cpu", "small")
    assert record.versions.keys() >= {"halfguard", "Python", "torch"}
    assert "9 of 9 checks passed" in done.stdout
    assert "quick run" in out.with_suffix(".html").read_text()


@pytest.mark.slow
def test_on_the_stand_in_every_check_passes_but_the_one_that_needs_nccl(accelerator: Any) -> None:
    record = run_acceptance("standin", size="small")
    failed = {check.name: check.reason for check in record.failed}
    assert failed == {}
    assert [check.name for check in record.checks if check.status == "not run"] == ["lockstep"]
    assert sum(accelerator.operations().values()) > 10_000
    no_kernel = [case.name for case in record.check("autocast").cases if case.status == "not run"]
    assert set(no_kernel) == {
        "_scaled_dot_product_flash_attention",
        "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "gru_cell",
        "lstm_cell",
    }


def test_json_is_the_record(tmp_path: Path) -> None:
    record = run_acceptance("cpu", size="small", checks=[_Good()])
    read = AcceptanceRecord.from_json(record.to_json())
    assert read == record
    assert json.loads(record.to_json())["kind"] == "acceptance"


class _Good:
    NAME, CLAIM = "good", "It is good."

    @staticmethod
    def run(setting: Setting) -> Cases:
        yield AcceptanceCase(name="one", figures={"speed": 2.0})
        yield AcceptanceCase(name="two", status="not run", detail="no kernel")


class _Raising:
    NAME, CLAIM = "raising", "It raises."

    @staticmethod
    def run(setting: Setting) -> Iterator[AcceptanceCase]:
        yield AcceptanceCase(name="one")
        raise ValueError(f"broken at {Path.home()}/data\nand more")


class _Impossible:
    NAME, CLAIM = "impossible", "It cannot run."

    @staticmethod
    def run(setting: Setting) -> Cases:
        raise NotRunError("It needs two GPUs.")


class _Failing:
    NAME, CLAIM = "failing", "It fails."

    @staticmethod
    def run(setting: Setting) -> Cases:
        yield AcceptanceCase(name="one")
        yield AcceptanceCase(name="two", status="failed", detail="wrong by 2")


def test_a_check_that_raises_has_failed_and_the_others_still_run() -> None:
    record = run_acceptance("cpu", checks=[_Raising(), _Impossible(), _Failing(), _Good()])
    assert [check.status for check in record.checks] == ["failed", "not run", "failed", "passed"]
    raised, impossible, failing, good = record.checks
    assert raised.reason == "ValueError: broken at ~/data"
    assert [case.name for case in raised.cases] == ["one"]
    assert impossible.reason == "It needs two GPUs."
    assert failing.reason == "1 of 2 cases failed. two: wrong by 2."
    assert good.reason == "1 of 2 cases were not run: two. no kernel."
    assert not record.passed


def test_the_process_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    run_acceptance("cpu", checks=[_Good()])
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize("name", ["cuda", "nonsense"])
def test_a_device_that_torch_cannot_use_is_a_usage_error(name: str) -> None:
    import torch

    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="cannot use the device") as caught:
        run_acceptance(name, checks=[])
    assert "halfguard doctor" in caught.value.cure
