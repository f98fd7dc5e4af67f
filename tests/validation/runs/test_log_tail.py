"""What a process said last, of a log of any length."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.validation.runs.log_tail import last_line


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"Traceback:\n  line\nRuntimeError: out of range\n\n", "RuntimeError: out of range"),
        (b"x" * 10_000_000 + b"\nend", "end"),
        (b"x" * 1000, "x" * 300),
        ("ä".encode() * 5000, "ä" * 300),
        (b"\xff\xfe half a character", "\ufffd\ufffd half a character"),
    ],
)
def test_the_last_line(tmp_path: Path, said: bytes, last: str) -> None:
    (tmp_path / "log").write_bytes(said)
    assert last_line(tmp_path / "log") == last
