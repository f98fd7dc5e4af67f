"""Lines at the end of a file, written and read by one rule: a line exists once its newline does.

The rule settles every crash. What a killed process left behind its last newline never counted: a
reader stops before it, and the next writer cuts it off before its own first line. Each line is one
unbuffered write, so nothing waits in this process to be lost with it, or to be written a second time
by a forked data loader.

A disk that fails must not end a training run: the first ``OSError`` is logged, and from then on lines
are only counted as lost.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from halfguard.errors import RecordError
from halfguard.records.files import sync_folder
from halfguard.records.rows import Row, row_from_json

logger = logging.getLogger("halfguard")

_BLOCK = 4096


class Lines:
    """Appends to one file, which one process at a time may write; ``lost`` counts what it could not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._file: io.FileIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Kept in the attribute at once, so that a failure further down closes it.
            self._file = path.open("a+b", buffering=0)
            _cut_torn_line(self._file, path)
            sync_folder(path.parent)
        except OSError as error:
            self._give_up(error)

    @property
    def working(self) -> bool:
        """Whether the next line will be tried on the disk."""
        return self._file is not None

    def append(self, text: str) -> None:
        """Write one line; ``text`` holds no newline."""
        if self._file is None:
            self.lost += 1
            return
        rest = memoryview(f"{text}\n".encode())
        try:
            while rest:  # a disk that fills up takes a part first, and refuses at the next call
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.lost += 1
            self._give_up(error)

    def sync(self) -> None:
        """Bring what was appended to the disk itself, so that it survives a power cut."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Sync and let go of the file; later lines are counted as lost."""
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
            "The journal cannot write %s: %s. Training goes on; from here the journal is kept in "
            "memory only.",
            self.path,
            error,
        )


def _cut_torn_line(file: io.FileIO, path: Path) -> None:
    """Truncate the file to its last newline, reading backwards no further than that."""
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
        logger.info("Cut %d bytes of a half-written row from the end of %s.", size - end, path)
        file.truncate(end)


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Read the rows of a ``steps.jsonl``, in the order of writing, also while it is being written.

    A last line without its newline is not a row yet and is left out. Kinds that a later halfguard
    added are left out as well, with one warning for each; anything else raises a ``RecordError`` with
    its line. After a resumed run a step can occur twice: the last row that covers it holds.
    """
    unknown: set[str] = set()
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = row_from_json(line)
            except RecordError as error:
                raise RecordError(
                    f"{path}, line {number}: {error.message}", cure=error.cure
                ) from error
            if not isinstance(row, str):
                yield row
            elif row not in unknown:
                unknown.add(row)
                logger.warning(
                    "%s, line %d: rows of kind %r are left out, since this halfguard does not know "
                    "them. Run: pip install --upgrade halfguard",
                    path,
                    number,
                    row,
                )
