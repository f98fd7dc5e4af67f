"""The torch that a project requires, as its requirements, images and install commands name it."""

from __future__ import annotations

import re
from collections.abc import Iterator

Version = tuple[int, int]
WITH_AMP: Version = (1, 6)  # the first torch with torch.cuda.amp
WITH_NEW_NAMES: Version = (2, 3)  # the first torch with torch.amp.GradScaler
# torch==1.9, pytorch=1.12, torch = "^1.13", torch>=1.8,<2.0, pytorch/pytorch:1.11.0, install torch-1.13.1
_TORCH = re.compile(
    rb"torch([ \t(=~<>^\"']+|[-:])(\d+)\.?(\d*)(?:[\d.]*,[ \t]?<=?[ \t]?(\d+)\.?(\d*))?"
)


def read_torch(data: bytes) -> Iterator[tuple[Version, bool]]:
    """Yield the versions of torch that a file names, and whether each is only the least one."""
    for found in _TORCH.finditer(data):
        sign, *numbers = found.groups()
        major, minor, below, below_minor = (int(n or 0) for n in numbers)
        line = data[max(0, found.start() - 200) : found.start()].rpartition(b"\n")[2]
        if sign == b":" and line.endswith(b"nvidia/py"):
            # A year and a month: 20.06 has torch 1.6, 24.03 has 2.3.
            known = ((20, 6), (1, 5)), ((24, 3), (2, 2))
            yield from [(version, False) for tag, version in known if (major, minor) < tag][:1]
        elif sign in b"-:":
            if line.endswith(b"pytorch/py") if sign == b":" else b"install" in line:
                yield (major, minor), False
        elif re.search(rb"(^|[^\w-])(py)?$", line) and re.search(rb"[=~<>]", sign):
            yield (major, minor), b">" in sign
            if below:
                yield (below, below_minor), False
