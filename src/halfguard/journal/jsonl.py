"""Write and read JSON lines by one rule: a line exists once its newline does.

The rule covers every crash. If a process was killed in the middle of a line, readers stop before that line,
and the next writer removes it. Each line is one unbuffered write. So no line is lost in a buffer of a killed
process, or written a second time by a forked data loader.

A failing disk must not end a training run: the first ``OSError`` is logged, and later lines are left out.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from halfguard.errors import RecordError
from halfguard.records.atomic_write import sync_folder
from halfguard.records.journal_rows import JournalRow, parse_journal_row

logger = logging.getLogger("halfguard")

_BLOCK = 4096


class JsonlWriter:
    """Appends lines to a file that no other process writes, until a write fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Set the attribute first, so that a failure below closes the file.
            self._file = path.open("a+b", buffering=0)
            _remove_partial_line(self._file, path)
            sync_folder(path.parent)
        except OSError as error:
            self._give_up(error)

    @property
    def working(self) -> bool:
        """True until the first failed write."""
        return self._file is not None

    def append(self, text: str) -> None:
        """Write one line; ``text`` must not contain a newline."""
        if self._file is None:
            return
        rest = memoryview(f"{text}\n".encode())
        try:
            while rest:  # a nearly full disk writes a part, then refuses the next call
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._give_up(error)

    def sync(self) -> None:
        """Call ``fsync``, so that the lines survive a power failure."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Sync and close the file; later lines are not written."""
        self.sync()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        logger.warning(
            "The journal cannot write %s: %s. Training continues, and from now on the journal is "
            "kept only in memory.",
            self.path,
            error,
        )


def _remove_partial_line(file: io.FileIO, path: Path) -> None:
    """Truncate the file after its last newline; read backwards only as far as needed."""
    size = file.seek(0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        logger.info("Removed a partly written row (%d bytes) from the end of %s.", size - end, path)
        file.truncate(end)


def read_rows(path: str | os.PathLike[str]) -> Iterator[JournalRow]:
    """Yield the rows of a ``steps.jsonl`` in the order of writing; a run may still write to it.

    A last line without a newline is not a row yet and is left out. Rows of kinds that a later halfguard added
    are left out too, with one warning per kind. Anything else raises a ``RecordError`` with the line number.
    After a resumed run a step can occur twice: the last row that covers it is the valid one.
    """
    unknown: set[str] = set()
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = parse_journal_row(line)
            except RecordError as error:
                raise RecordError(
                    f"{path}, line {number}: {error.message}", cure=error.cure
                ) from error
            if not isinstance(row, str):
                yield row
            elif row not in unknown:
                unknown.add(row)
                logger.warning(
                    "%s, line %d: rows of kind %r are ignored because this version of halfguard does not "
                    "know them. Run: pip install --upgrade halfguard",
                    path,
                    number,
                    row,
                )
