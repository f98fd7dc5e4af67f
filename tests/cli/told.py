"""What the program said, when it was run as a shell runs it."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    code: object
    out: str
    err: str
