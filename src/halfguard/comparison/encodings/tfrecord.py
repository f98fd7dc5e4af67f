"""TFRecord files: records, each with its length, a checksum of the length, the data, and its checksum.

The checksum of the data is not verified: in Python that takes longer than reading the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from halfguard.comparison.encodings.protobuf import MalformedMessageError


def tfrecords(path: Path) -> Iterator[bytes]:
    """Yield the data of each record, up to the last complete one."""
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            size, checksum = struct.unpack("<QI", head)
            if _masked_crc32c(head[:8]) != checksum:
                raise MalformedMessageError(f"wrong checksum at byte {file.tell() - 12}")
            data = file.read(size)
            if len(data) < size or len(file.read(4)) < 4:
                return  # the last record is still being written
            yield data


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
