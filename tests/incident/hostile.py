"""Folders that somebody made to hurt whoever opens them."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECORD, TENSORS = "incident.json", "tensors.safetensors"
NASTY: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, "", "../../outside/evil", "/etc/passwd", "\x00", "a" * 10_000, [], {},
    [[]] * 50, {"type": "tensor", "name": "../x"}, {"type": "exec"}, "NaN", "\ud800", -0.0,
]  # fmt: skip


def hostile_folders(base: Path, work: Path, count: int, seed: int) -> Iterator[Path]:
    """Yield ``count`` mutants of a good folder, one after the other, at the same place."""
    rng = random.Random(seed)
    mutations: list[Callable[[Path, random.Random], None]] = [
        _bytes, _bytes, _truncated, _json_value, _json_value, _json_value, _deep_json, _header, _header,
        _huge_header, _link, _missing, _directory, _strangers,
    ]  # fmt: skip
    for _ in range(count):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        for mutate in rng.choices(mutations, k=rng.choice([1, 1, 2])):
            mutate(work, rng)
        yield work


def _plain(path: Path) -> bool:
    # A mutant may hold links by now; nothing here may read or write through one.
    return path.is_file() and not path.is_symlink()


def _bytes(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    if not _plain(path):
        return
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 20)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def _file(folder: Path, rng: random.Random) -> Path:
    return folder / rng.choice([RECORD, TENSORS])


def _truncated(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    if _plain(path):
        data = path.read_bytes()
        path.write_bytes(data[: rng.randint(0, len(data))] + bytes(rng.randint(0, 3)))


def _json_value(folder: Path, rng: random.Random) -> None:
    path = folder / RECORD
    if not _plain(path):
        return
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    if isinstance(body, dict):
        _replace_somewhere(body, rng)
        path.write_bytes(json.dumps(body).encode())


def _replace_somewhere(body: Any, rng: random.Random) -> None:
    while True:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(body[key], dict | list) and body[key] and rng.random() < 0.7:
            body = body[key]
            continue
        body[key] = rng.choice(NASTY)
        return


def _deep_json(folder: Path, rng: random.Random) -> None:
    text = rng.choice(["[", '{"a":']) * rng.choice([100, 5_000, 200_000])
    if rng.random() < 0.5:
        text = '{"kind": "incident", "schema_version": 1, "micro_batches": ' + text
    if _plain(folder / RECORD):
        (folder / RECORD).write_text(text)


def _header(folder: Path, rng: random.Random) -> None:
    path = folder / TENSORS
    if not _plain(path):
        return
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return
    name = rng.choice(list(header)) if isinstance(header, dict) and header else None
    if name is None or not isinstance(header[name], dict):
        return
    huge = [2**40, 2**62, -5, 0, 10**30]
    header[name] |= rng.choice(
        [
            {"shape": [rng.choice(huge), rng.choice(huge)]},
            {"data_offsets": [rng.choice(huge), rng.choice(huge)]},
            {"dtype": rng.choice(["F64", "U8", "NOPE", "", None])},
            {"shape": [1] * 5_000},
        ]
    )
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + length :])


def _huge_header(folder: Path, rng: random.Random) -> None:
    path = folder / TENSORS
    if _plain(path):
        data = path.read_bytes()
        length = rng.choice([2**63, 2**40, 2**31, len(data), 0])
        path.write_bytes(length.to_bytes(8, "little") + data[8:])


def _link(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    if _plain(path):
        path.unlink()
        path.symlink_to(rng.choice(["/dev/zero", "../outside/untouched", path.name, "."]))


def _missing(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    if _plain(path):
        path.unlink()


def _directory(folder: Path, rng: random.Random) -> None:
    path = _file(folder, rng)
    if _plain(path):
        path.unlink()
        path.mkdir()


def _strangers(folder: Path, rng: random.Random) -> None:
    (folder / "evil.pkl").write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
