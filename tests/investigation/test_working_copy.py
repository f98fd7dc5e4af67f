"""The copy of the working folder: real folders, copies of small files, links to large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation import working_copy
from halfguard.investigation.working_copy import Links, WorkingCopy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "user"
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text("x = 1")
    (root / "data" / "large.bin").write_bytes(bytes(9 * 2**20))
    (root / "link").symlink_to("train.py")
    return root


def test_small_files_are_copied_and_large_ones_linked(folder: Path, tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path / "copy", (folder,))
    copy.make()
    inside = copy.inside(folder)
    assert not (inside / "train.py").is_symlink()
    assert (inside / "data" / "large.bin").is_symlink()
    assert (inside / "link").resolve() == inside / "train.py"
    (inside / "train.py").write_text("changed")
    (inside / "data" / "new").write_text("new")
    copy.make()  # a second pass begins from the same files
    assert (inside / "train.py").read_text() == "x = 1"
    assert not (inside / "data" / "new").exists()
    assert copy.original(str(inside / "train.py")) == str(folder / "train.py")


def test_a_link_becomes_a_copy_before_it_is_written(folder: Path, tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path / "copy", (folder,))
    copy.make()
    large = copy.inside(folder / "data" / "large.bin")
    links = Links.read(str(copy.links))
    assert links.make_real(str(large), truncates=False)
    assert not large.is_symlink()
    large.write_bytes(b"changed")
    assert (folder / "data" / "large.bin").stat().st_size == 9 * 2**20
    assert not links.make_real(str(large), truncates=False)


def test_too_many_files_are_linked_as_a_whole_and_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_copy, "_MOST_ENTRIES", 0)
    copy = WorkingCopy(tmp_path / "copy", (folder,))
    copy.make()
    assert copy.shared == (str(folder / "data"),)
    copy.remove()
    assert (folder / "data" / "large.bin").exists()


def test_the_folder_of_the_copies_is_not_copied_into_itself(folder: Path) -> None:
    copy = WorkingCopy(folder / "halfguard-why-1" / "copy", (folder,))
    copy.place.parent.mkdir()
    copy.make()
    inside = copy.inside(folder)
    assert (inside / "train.py").exists()
    assert not (inside / "halfguard-why-1").exists()
