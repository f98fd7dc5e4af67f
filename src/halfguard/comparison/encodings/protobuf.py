"""Protocol buffers without generated code: the fields of one message, by number.

TensorBoard and wandb write messages of which only a few fields are needed here. Field numbers are the part of
a format that its authors cannot change, so reading them directly works with every version, and the trackers'
packages need not be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class MalformedMessageError(ValueError):
    """Bytes that are not a message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: an int for a varint, bytes for everything else."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise MalformedMessageError(f"wire type {kind} at byte {at}")
        if at + size > end:
            raise MalformedMessageError(f"a field ends at byte {at + size} of {end}")
        yield number, message[at : at + size]
        at += size


def messages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield every value of a field that holds messages, bytes or text."""
    for found, value in fields(message):
        if found == number and isinstance(value, bytes):
            yield value


def text(message: bytes, number: int) -> str:
    """Return a text field, or an empty string."""
    return next((value.decode(errors="replace") for value in messages(message, number)), "")


def signed(value: int | bytes) -> int:
    """Return a varint as the 64-bit integer that it stands for."""
    if isinstance(value, bytes):
        raise MalformedMessageError("bytes where an integer was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def float_of(value: int | bytes) -> float:
    """Return the float or double in a field of fixed size."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        raise MalformedMessageError("no float where one was expected")
    number: float = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return number


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise MalformedMessageError("a number is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedMessageError("a number has more than 64 bits")
