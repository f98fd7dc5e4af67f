"""``halfguard report`` on runs that a real guard wrote: finished, still going on, killed, damaged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from halfguard.cli.verdicts import save_verdict, sign
from halfguard.records.verdict import Verdict
from halfguard.report import Story
from halfguard.validation.judgement.verdict import judge
from tests.cli.told import Told
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
    assert training(folder, 40).wait(120) == 0
    return folder


def test_a_run_is_told_in_every_form(
    finished: Path, tmp_path: Path, halfguard: Callable[..., Told]
) -> None:
    told = halfguard("report", finished, "--html", "a.html", "--md", "a.md")
    assert told.code == 0, told.err
    for part in (
        "36 of 40 steps were applied",
        "4 skipped",
        "bad batch",
        "halfguard replay",
        "Epochs",
    ):
        assert part.replace("bad batch", "forward overflow") in told.out, told.out
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == 3
    linked = page.partition('href="./')[2].partition('"')[0]
    assert (tmp_path / linked / "incident.json").is_file()
    assert (tmp_path / "a.md").read_text().startswith("# Run ")
    as_json = json.loads(halfguard("report", finished, "--json").out)
    assert as_json["closed"] is True
    assert [row["step"] for row in as_json["unusual"]] == [7, 17, 27, 37]
    assert as_json["summary"]["applied"] == 36


def test_a_run_that_is_still_going_on_and_one_that_was_killed(
    tmp_path: Path, halfguard: Callable[..., Told]
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
    told = halfguard("report", "live")
    assert told.code == 0
    assert "not closed" in told.out


@pytest.mark.parametrize(
    ("tail", "code", "said"),
    [
        (b'{"kind": "step", "schema_ver', 0, ""),
        (b"\x00\x00\x00\x00", 0, ""),
        (b'{"kind": "step", "schema_ver\n', 1, "damaged"),
        (b"\xff\xfe\x00garbage\n", 1, "damaged"),
        (b'{"kind": "later", "schema_version": 1}\n', 0, ""),
    ],
)
def test_a_damaged_end_costs_no_more_than_itself(
    finished: Path,
    tmp_path: Path,
    halfguard: Callable[..., Told],
    tail: bytes,
    code: int,
    said: str,
) -> None:
    (tmp_path / "run").mkdir()
    whole = (finished / "steps.jsonl").read_bytes()
    (tmp_path / "run" / "steps.jsonl").write_bytes(whole + tail)
    told = halfguard("report", "run")
    assert told.code == code
    assert "36 of 40 steps were applied" in told.out
    assert said in told.out


def test_a_damaged_run_file_does_not_hide_the_steps(
    finished: Path, tmp_path: Path, halfguard: Callable[..., Told]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_bytes((finished / "steps.jsonl").read_bytes())
    (tmp_path / "run" / "run.json").write_text("{")
    told = halfguard("report", "run")
    assert told.code == 1
    assert "run.json" in told.out
    assert "36 of 40" in told.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "is not the folder of a run"),
        (["{run}", "--html", "no/such.html"], "does not exist"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(
    arguments: list[str], said: str, finished: Path, halfguard: Callable[..., Told]
) -> None:
    told = halfguard("report", *(text.format(run=finished) for text in arguments))
    assert told.code == 2
    assert said in told.err


def test_the_folder_of_a_study_shows_its_verdict_and_what_the_sign_off_is_worth(
    tmp_path: Path, halfguard: Callable[..., Told]
) -> None:
    made = study({"fp16-mixed": losing(0.0)})
    (tmp_path / "study.json").write_text(made.to_json())
    save_verdict(tmp_path, made, judge(made))
    assert "Not signed" in halfguard("report", ".").out
    sign(tmp_path, "Ada Lovelace")
    told = halfguard("report", ".")
    assert told.code == 0
    assert "PASS signed by Ada Lovelace" in told.out
    (tmp_path / "late.json").write_text("{}")
    told = halfguard("report", ".")
    assert "VOID" in told.out
    assert "late.json" in told.out
    assert Verdict.from_json(halfguard("report", ".", "--json").out).word == "PASS"


def test_a_study_that_does_not_pass_ends_with_one(
    tmp_path: Path, halfguard: Callable[..., Told]
) -> None:
    made = study({"fp16-mixed": losing(0.118)})
    (tmp_path / "study.json").write_text(made.to_json())
    save_verdict(tmp_path, made, judge(made))
    assert halfguard("report", ".").code == 1


def test_a_report_needs_no_torch(finished: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from halfguard.cli.stories import read; "
        "from halfguard.report import run_page, to_html; "
        f"to_html(run_page(read(Path({str(finished)!r})))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert Story.of("a", []).line.parts == []
