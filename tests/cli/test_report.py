"""``halfguard report`` on runs that a real guard wrote: finished, still going on, killed, damaged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halfguard.records.study import Verdict
from halfguard.report.timeline import RunReport
from halfguard.step.random_state import seeded
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.study_files import approve, write_reports
from tests.cli.command_result import Run
from tests.validation.studies import losing, study

pytestmark = pytest.mark.usefixtures("seed")
TRAIN = """
import sys, time, torch
from torch import nn
import halfguard as hg

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
guard = hg.Guard(model, optimizer, run_dir=sys.argv[1])
steps, pause = int(sys.argv[2]), float(sys.argv[3])

def loss_fn(model, batch):
    return model(batch).float().square().mean()

for step in range(steps):
    batch = torch.randn(4, 8)
    if step % 10 == 7:
        batch[1] *= 1e30
    guard.step(loss_fn, batch)
    if step % 10 == 9:
        guard.end_epoch()
    time.sleep(pause)
guard.close()
"""


def training(folder: Path, steps: int, pause: float = 0.0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", TRAIN, str(folder), str(steps), str(pause)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "first"
    with pytest.MonkeyPatch.context() as patch, seeded(0):
        patch.setattr(sys, "argv", ["train.py", str(folder), "40", "0"])
        exec(TRAIN, {})
    return folder


def test_a_run_is_reported_in_every_format(finished: Path, tmp_path: Path, halfguard: Run) -> None:
    result = halfguard("report", finished, "--html", "a.html", "--markdown", "a.md")
    assert result.exit_code == 0, result.err
    for part in (
        "36 of 40 steps were applied",
        "4 skipped",
        "bad batch",
        "halfguard replay",
        "Epochs",
    ):
        assert part.replace("bad batch", "forward overflow") in result.out, result.out
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == 3
    linked = page.partition('href="./')[2].partition('"')[0]
    assert (tmp_path / linked / "incident.json").is_file()
    assert (tmp_path / "a.md").read_text().startswith("# Run ")
    as_json = json.loads(halfguard("report", finished, "--json").out)
    assert as_json["closed"] is True
    assert [row["step"] for row in as_json["unusual"]] == [7, 17, 27, 37]
    assert as_json["summary"]["applied"] == 36


@pytest.mark.slow
def test_a_run_that_is_still_going_on_and_one_that_was_killed(
    tmp_path: Path, halfguard: Run
) -> None:
    process = training(tmp_path / "live", 100_000, pause=0.01)
    rows = tmp_path / "live" / "steps.jsonl"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not rows.exists() or rows.stat().st_size < 2000):
            time.sleep(0.05)
        seen = [json.loads(halfguard("report", "live", "--json").out) for _ in range(5)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    steps = [one["summary"]["steps"] for one in seen]
    assert steps == sorted(steps)
    assert steps[0] > 0
    assert not any(one["closed"] for one in seen)
    result = halfguard("report", "live")
    assert result.exit_code == 0
    assert "not closed" in result.out


@pytest.mark.parametrize(
    ("tail", "code", "message"),
    [
        (b'{"kind": "step", "schema_ver', 0, ""),
        (b"\x00\x00\x00\x00", 0, ""),
        (b'{"kind": "step", "schema_ver\n', 1, "damaged"),
        (b"\xff\xfe\x00garbage\n", 1, "damaged"),
        (b'{"kind": "later", "schema_version": 1}\n', 0, ""),
    ],
)
def test_a_damaged_end_leaves_the_rest_readable(
    finished: Path,
    tmp_path: Path,
    halfguard: Run,
    tail: bytes,
    code: int,
    message: str,
) -> None:
    (tmp_path / "run").mkdir()
    whole = (finished / "steps.jsonl").read_bytes()
    (tmp_path / "run" / "steps.jsonl").write_bytes(whole + tail)
    result = halfguard("report", "run")
    assert result.exit_code == code
    assert "36 of 40 steps were applied" in result.out
    assert message in result.out


def test_a_damaged_run_file_does_not_hide_the_steps(
    finished: Path, tmp_path: Path, halfguard: Run
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_bytes((finished / "steps.jsonl").read_bytes())
    (tmp_path / "run" / "run.json").write_text("{")
    result = halfguard("report", "run")
    assert result.exit_code == 1
    assert "run.json" in result.out
    assert "36 of 40" in result.out


def test_the_folder_of_a_study_shows_its_verdict_and_its_sign_off(
    tmp_path: Path, halfguard: Run
) -> None:
    made = study({"fp16-mixed": losing(0.0)})
    (tmp_path / "study.json").write_text(made.to_json())
    write_reports(tmp_path, made, judge(made))
    assert "Not signed" in halfguard("report", ".").out
    approve(tmp_path, "Ada Lovelace")
    result = halfguard("report", ".")
    assert result.exit_code == 0
    assert "PASS signed by Ada Lovelace" in result.out
    (tmp_path / "study.json").write_text(study({"fp16-mixed": losing(0.001)}).to_json())
    assert "VOID" in halfguard("report", ".").out
    assert Verdict.from_json(halfguard("report", ".", "--json").out).word == "PASS"


def test_a_study_that_does_not_pass_ends_with_one(tmp_path: Path, halfguard: Run) -> None:
    made = study({"fp16-mixed": losing(0.118)})
    (tmp_path / "study.json").write_text(made.to_json())
    write_reports(tmp_path, made, judge(made))
    assert halfguard("report", ".").exit_code == 1


def test_a_report_needs_no_torch(finished: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from halfguard.journal.run_folder import read_run; "
        "from halfguard.report.html import to_html; from halfguard.report.run import run_page; "
        f"to_html(run_page(read_run(Path({str(finished)!r})))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert RunReport.of("a", []).timeline.parts == []
