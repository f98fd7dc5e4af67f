"""The copy of the working folder: real folders, copies of small files, links to large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation import working_copy
from halfguard.investigation.working_copy import WorkingCopy, make_own


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


def test_a_link_becomes_a_copy_before_it_is_written(folder: Path, tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path / "copy", (folder,))
    copy.make()
    large = copy.inside(folder / "data" / "large.bin")
    assert make_own(str(large), str(copy.place))
    assert not large.is_symlink()
    assert large.stat().st_size == 9 * 2**20
    large.write_bytes(b"changed")
    assert (folder / "data" / "large.bin").stat().st_size == 9 * 2**20
    assert make_own(str(large), str(copy.place), truncates=True)  # it is real already
    assert large.read_bytes() == b"changed"
    assert not make_own(str(folder / "train.py"), str(copy.place))


def test_links_of_the_user_lead_to_copies_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old").write_text("mine")
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    copy = WorkingCopy(tmp_path / "why" / "copy", (folder,))
    copy.place.parent.mkdir()
    copy.make()
    for name in ("link", "out/old", "out/new"):
        made = copy.inside(folder) / name
        assert make_own(str(made), str(copy.place), truncates=True)
        made.write_text("the script's")
    assert (folder / "train.py").read_text() == "x = 1"
    assert (tmp_path / "elsewhere" / "old").read_text() == "mine"
    assert not (tmp_path / "elsewhere" / "new").exists()
    assert (copy.inside(folder) / "train.py").read_text() == "the script's"


def test_too_many_files_are_linked_as_a_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_copy, "_MOST_ENTRIES", 0)
    copy = WorkingCopy(tmp_path / "copy", (folder,))
    copy.make()
    data = copy.inside(folder) / "data"
    assert data.is_symlink()
    assert make_own(str(data / "new"), str(copy.place))
    (data / "new").touch()
    assert (data / "large.bin").exists()
    assert not (folder / "data" / "new").exists()
    copy.remove()
    assert (folder / "data" / "large.bin").exists()


def test_the_folder_of_the_copies_is_not_copied_into_itself(folder: Path) -> None:
    copy = WorkingCopy(folder / "halfguard-why-1" / "copy", (folder,))
    copy.place.parent.mkdir()
    copy.make()
    inside = copy.inside(folder)
    assert (inside / "train.py").exists()
    assert not (inside / "halfguard-why-1").exists()


def test_what_lies_beside_the_folder_is_linked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("1")
    copy = WorkingCopy(tmp_path / "why" / "copy", (folder,))
    copy.place.parent.mkdir()
    for _ in range(2):
        copy.make()
        beside = copy.inside(folder) / ".." / "data"
        assert (beside / "rows.csv").read_text() == "1"
        assert beside.resolve() == tmp_path / "data"
        assert (copy.inside(folder) / ".." / ".." / tmp_path.name / "data").is_dir()
        assert not (copy.inside(folder).parent / "why").exists()
        # a file that is made there is lost with the copy
        (copy.inside(folder) / ".." / "new.txt").write_text("new")
        assert not (tmp_path / "new.txt").exists()
    copy.remove()
    assert (tmp_path / "data" / "rows.csv").exists()


def test_what_is_written_beside_the_folder_stays_in_the_copy(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("mine")
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "last.txt").write_text("mine")
    copy = WorkingCopy(tmp_path / "why" / "copy", (folder,))
    copy.place.parent.mkdir()
    copy.make()
    beside = copy.inside(folder).parent
    for path in (beside / "log.csv", beside / "runs" / "old" / "last.txt"):
        assert path.read_text() == "mine"
        assert make_own(str(path), str(copy.place), truncates=True)
        path.write_text("the script's")
    assert make_own(str(beside / "runs"), str(copy.place))
    (beside / "runs" / "new").mkdir()
    assert (tmp_path / "log.csv").read_text() == "mine"
    assert (tmp_path / "runs" / "old" / "last.txt").read_text() == "mine"
    assert not (tmp_path / "runs" / "new").exists()
    assert copy.changed() == []


def test_a_folder_near_the_root_has_fewer_above_it(tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path, (Path("/a"), Path("/b/c")))
    assert list(copy.pairs()) == [
        (tmp_path / "0" / "a", Path("/a")),
        (tmp_path / "0", Path("/")),
        (tmp_path / "1" / "b" / "c", Path("/b/c")),
        (tmp_path / "1" / "b", Path("/b")),
        (tmp_path / "1", Path("/")),
    ]
