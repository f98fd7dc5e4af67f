"""The torch that a project requires, as its requirements, images, README and install commands name it."""

from __future__ import annotations

import re
from collections.abc import Iterator

Version = tuple[int, int]
WITH_AMP: Version = (1, 6)  # the first torch with torch.cuda.amp
WITH_NEW_NAMES: Version = (2, 3)  # the first torch with torch.amp.GradScaler
DEPRECATING: Version = (2, 4)  # the first torch that warns of torch.cuda.amp
# torch==1.9, pytorch=1.12, torch = "^1.13", torch>=1.8,<2.0, pytorch/pytorch:1.11.0, install torch-1.13.1,
# torchvision==0.15.2, nvidia/pytorch:21.11, [PyTorch](https://...) 1.7.1, PyTorch version 1.4, |torch|2.0
_TORCH = re.compile(
    rb"orch(?<=[Tt]orch)(vision|audio)?([-:](?:ngc-)?|[*`\]]*(?:\(http[^)\s]*\))?[ \t|]*"
    rb"(?:install|[Vv]ersions?|is)?[ \t(=~<>^\"'*`:\[|]*v?)(\d+)\.?(\d*)"
    rb"(?:[\d.]*,[ \t]?<(=?)[ \t]?(\d+)\.?(\d*))?"
)
# An image is named by a year and a month; these are the first ones with the next torch.
_IMAGES: tuple[tuple[Version, Version], ...] = (
    ((20, 6), (1, 5)), ((24, 3), (2, 2)), ((24, 5), (2, 3))
)  # fmt: skip
_FIRST_YEAR = 17
_LEAST = re.compile(
    rb"[\d.x]*[*`\])]*[ \t]*(?:\+(?!cu)|(?:or|and|\()?[ \t]*(?:later|higher|above|newer|greater|up\b))"
)
# Other requirements that decide it: a channel of conda, a Lightning that knows no torch after 2.0.
_OTHERS: tuple[tuple[bytes, Version], ...] = (
    (rb"pytorch-lts", (1, 8)),
    (rb"lightning[\"' \t]*[=~<^][\"' \t=^~]*1\.\d", (2, 0)),
)
_PROSE = re.compile(r"readme|install", re.IGNORECASE)


def read_torch(data: bytes, name: str = "README") -> Iterator[tuple[Version, bool]]:
    """Yield the versions of torch that a file of this name has, and whether each is only the least one.

    Where people describe how a project is set up, a version is the one it was made for, however it is said.
    """
    is_prose = bool(_PROSE.match(name))
    yield from ((version, False) for other, version in _OTHERS if re.search(other, data))
    for found in _TORCH.finditer(data):
        library, sign, includes = found.group(1, 2, 5)
        major, minor, below, below_minor = (int(n or 0) for n in found.group(3, 4, 6, 7))
        version = _torch_of(library, major, minor)
        line = data[max(0, found.start() - 200) : found.start()].rpartition(b"\n")[2]
        if sign[:1] == b":" and major >= _FIRST_YEAR:
            yield from [(v, False) for tag, v in _IMAGES if (major, minor) < tag][:1]
        elif sign == b":" and line.endswith(b"/pyt"):
            yield version, False
        elif sign == b"-":
            if b"install" in line or re.match(rb"[^\s\"']*\.whl", data[found.end() :][:100]):
                yield version, False
        elif not re.search(rb"(?:^|[^\w-])(?:[Pp]y)?[Tt]$", line):
            continue  # a library for torch
        elif re.search(rb"[=~<>]", sign):
            yield _below(version) if sign.rstrip()[-1:] == b"<" else version, b">" in sign
            if below:
                limit = _torch_of(library, below, below_minor)
                yield limit if includes else _below(limit), False
        elif found[4] and version < DEPRECATING and is_prose:
            yield version, _LEAST.match(data, found.end()) is not None


def _torch_of(library: bytes | None, major: int, minor: int) -> Version:
    """Return the torch that a version of torchvision or torchaudio belongs to."""
    if major > 0 or not library:
        return major, minor
    if library == b"audio":
        return 1, minor
    return (2, minor - 15) if minor >= 15 else (1, minor - 1)


def _below(version: Version) -> Version:
    """Return the version before one; (2, -1) is before 2.0."""
    return version[0], version[1] - 1
