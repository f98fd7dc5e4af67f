"""Killed writers and failing disks: the journal stays readable, and training continues."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from halfguard.journal import RUN_FILE, STEPS_FILE, Journal, make_run_info, read_rows
from tests.journal.helper import disk_of, skipped, spans, steps

# Starts where the file ends, as a resumed run does; long notes make the writes long.
WRITER = """
import sys
from pathlib import Path
from halfguard.journal import Journal
from tests.journal.helper import skipped
journal = Journal(sys.argv[1], steps_per_row=7)
step = int(sys.argv[2])
while True:
    if step % 10 == 9:
        journal.add_unusual_step(skipped(step, note="x" * (step * 7919 % 20_000)))
    else:
        journal.add_healthy_step(step, 1.0, 1.0, 65536.0)
    step += 1
"""


@pytest.mark.slow
def test_killed_fifteen_times_it_goes_on_without_a_gap(tmp_path: Path) -> None:
    chance = random.Random(20240)
    path = tmp_path / STEPS_FILE
    covered = 0
    for _ in range(15):
        size = path.stat().st_size if path.exists() else 0
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(covered)])
        while not path.exists() or path.stat().st_size <= size:
            assert writer.poll() is None
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
        found = steps(read_rows(path))
        assert found == list(range(len(found)))
        assert len(found) > covered
        covered = len(found)
    with closing(Journal(tmp_path)) as journal:
        journal.add_unusual_step(skipped(covered))
    assert steps(read_rows(path)) == list(range(covered + 1))


def use_journal(journal: Journal) -> None:
    journal.write_run_info(make_run_info({}))
    for step in range(20):
        journal.add_healthy_step(step, 1.0, 1.0, 1.0)
    journal.add_unusual_step(skipped(20))
    journal.flush()
    journal.close()


def assert_warned_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings = [record for record in caplog.records if record.name == "halfguard"]
    assert len(warnings) == 1, caplog.text
    assert warnings[0].levelno == logging.WARNING
    assert "Training continues" in caplog.text


def test_a_device_that_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / STEPS_FILE).symlink_to("/dev/full")
    journal = Journal(tmp_path, steps_per_row=10)
    use_journal(journal)
    assert spans(journal.recent_rows(9)) == [(0, 9), (10, 19), (20, 20)]
    assert_warned_once(caplog)


def test_a_disk_that_fills_up_keeps_the_rows_that_fitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    with disk_of(1000):
        for step in range(20):
            journal.add_unusual_step(skipped(step))
        journal.close()
    kept = steps(read_rows(tmp_path / STEPS_FILE))
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 20
    assert (tmp_path / STEPS_FILE).stat().st_size == 1000  # half a row was taken, then refused
    assert_warned_once(caplog)
    with closing(Journal(tmp_path)) as again:
        again.add_unusual_step(skipped(len(kept)))
    assert steps(read_rows(tmp_path / STEPS_FILE)) == list(range(len(kept) + 1))


@pytest.mark.parametrize("obstacle", ["folder is a file", "rows are a folder"])
def test_a_place_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    run_dir = tmp_path / "run"
    if obstacle == "folder is a file":
        run_dir.touch()
    else:
        (run_dir / STEPS_FILE).mkdir(parents=True)
    journal = Journal(run_dir, steps_per_row=10)
    use_journal(journal)
    assert len(journal.recent_rows(9)) == 3
    assert_warned_once(caplog)


def test_a_run_json_that_cannot_be_written_costs_no_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / RUN_FILE / "in the way").mkdir(parents=True)
    journal = Journal(tmp_path, steps_per_row=10)
    use_journal(journal)
    assert steps(read_rows(tmp_path / STEPS_FILE)) == list(range(21))
    assert_warned_once(caplog)


def test_a_disk_that_fails_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path, steps_per_row=10)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
    journal.add_unusual_step(skipped(0))
    journal.flush()
    journal.add_unusual_step(skipped(1))
    journal.close()
    assert_warned_once(caplog)
