"""Options of ``halfguard doctor`` that belong to the acceptance kit, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from halfguard.acceptance import host_syncs
from halfguard.cli.doctor import app
from halfguard.errors import UsageError
from halfguard.records.acceptance import AcceptanceRecord

runner = CliRunner()


@pytest.mark.parametrize(
    "option", [["--gpu", "T4"], ["--precision", "fp32"], ["--cost"], ["job.py:build"]]
)
def test_other_options_are_refused(option: list[str]) -> None:
    result = runner.invoke(app, ["--acceptance", *option])
    assert isinstance(result.exception, UsageError)
    assert "--acceptance checks a device" in str(result.exception)


@pytest.mark.parametrize("option", [["--quick"], ["--device", "cpu"]])
def test_options_of_the_kit_need_it(option: list[str]) -> None:
    result = runner.invoke(app, option)
    assert isinstance(result.exception, UsageError)
    assert result.exception.cure == "Add --acceptance."


@pytest.mark.slow
def test_a_failed_check_gives_exit_code_1_and_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one check runs here; the whole kit is run in test_kit."""
    monkeypatch.setattr(host_syncs, "WaitCounter", None)
    import halfguard.acceptance as kit

    real = kit.run_acceptance
    monkeypatch.setattr(
        kit,
        "run_acceptance",
        lambda device, **options: real(device, checks=[host_syncs], **options),
    )
    out = tmp_path / "record.json"
    result = runner.invoke(
        app, ["--acceptance", "--device", "cpu", "--quick", "--json", "-o", str(out)]
    )
    assert result.exit_code == 1
    record = AcceptanceRecord.from_json(result.stdout)
    assert record == AcceptanceRecord.from_json(out.read_text())
    assert record.check("host syncs").reason.startswith("TypeError")
    assert out.with_suffix(".html").exists()
