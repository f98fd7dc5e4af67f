"""LevelDB's log format, in which wandb writes: blocks of 32 KiB with records.

A record has a checksum, a length, a type, and the data; a long one is continued in the next block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from halfguard.comparison.encodings.protobuf import MalformedMessageError

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def log_records(data: bytes, start: int) -> Iterator[bytes]:
    """Yield the records after a file header of ``start`` bytes, up to the last complete one."""
    at, parts = start, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left  # the rest of a block is too short for a header
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + _HEADER : at + _HEADER + size]
        if len(body) < size:
            return  # the last record is still being written
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            raise MalformedMessageError(f"wrong checksum at byte {at}")
        parts = body if kind in (_FULL, _FIRST) else parts + body
        if kind in (_FULL, _LAST):
            yield parts
        at += _HEADER + size
