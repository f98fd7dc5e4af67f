"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.journal.helper import disk_of

from halfguard.records import write_atomically


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, "μ first")
    assert path.read_text(encoding="utf-8") == "μ first"
    write_atomically(str(path), b"\x00second")
    assert path.read_bytes() == b"\x00second"
    assert list(tmp_path.iterdir()) == [path]


def test_others_can_read_it_as_the_umask_says(tmp_path: Path) -> None:
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    plain.touch()
    write_atomically(whole, "x")
    assert stat.S_IMODE(whole.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    with disk_of(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, b"x" * 100_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_is_taken_only_after_the_bytes_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    seen = []
    sync = os.fsync

    def spy(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((target == tmp_path, path.read_text()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_atomically(path, "new")
    assert seen == [(False, "old"), (True, "new")]  # the file, the rename, then its folder


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "run.json", "x")


def test_mode_and_links_stay_as_they_are(tmp_path: Path) -> None:
    """`lint --fix` writes the user's own files with this."""
    script, link = tmp_path / "script.py", tmp_path / "link.py"
    script.write_text("old")
    script.chmod(0o755)
    link.symlink_to(script)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o777 == 0o755


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_atomically(path, "whole")
    assert path.read_text() == "whole"
