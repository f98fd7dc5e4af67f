"""An incident on disk: written atomically, and not trusted when it is opened.

Writing fills a hidden folder and renames it once everything in it is on disk, so a folder with an incident's
name is complete. Opening trusts nothing: links are rejected, the sizes of both files are checked before they
are read, and every tensor that the record names must be in the file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from halfguard.errors import RecordError
from halfguard.records import IncidentRecord, write_atomically

RECORD_FILE, TENSORS_FILE = "incident.json", "tensors.safetensors"
MAX_RECORD_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 1_000_000


@dataclass(frozen=True)
class Incident:
    """An opened incident; tensors are read from the file on request."""

    folder: Path
    record: IncidentRecord
    names: frozenset[str]

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors whose names start with ``prefix``, by the rest of the name; with aliases."""
        wanted = {name for name in self.names if name.startswith(prefix)}
        aliases = {a: b for a, b in self.record.aliases.items() if a.startswith(prefix)}
        try:
            with safe_open(self.folder / TENSORS_FILE, framework="pt") as file:
                loaded = {name: file.get_tensor(name) for name in wanted | set(aliases.values())}
        except (SafetensorError, OSError, ValueError) as error:
            raise RecordError(f"The tensors of {self.folder} cannot be read: {error}.") from error
        found = {name.removeprefix(prefix): loaded[name] for name in wanted}
        return found | {alias.removeprefix(prefix): loaded[name] for alias, name in aliases.items()}


def write_incident(folder: Path, record: IncidentRecord, tensors: Mapping[str, Tensor]) -> Path:
    """Write an incident as ``folder``, or raise and create no folder of that name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = folder.parent / f".{folder.name}.{secrets.token_hex(6)}.tmp"
    hidden.mkdir()
    try:
        path = hidden / TENSORS_FILE
        save_file(dict(tensors), path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        write_atomically(hidden / RECORD_FILE, record.to_json())
        hidden.rename(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return folder


def open_incident(path: str | os.PathLike[str]) -> Incident:
    """Open an incident from an untrusted source; RecordError says what is wrong with it."""
    folder = Path(path)
    record_size = _checked_size(folder, RECORD_FILE)
    tensors_size = _checked_size(folder, TENSORS_FILE)
    if record_size > MAX_RECORD_BYTES:
        raise RecordError(
            f"{folder / RECORD_FILE} has {record_size} bytes; {MAX_RECORD_BYTES} is the limit."
        )
    record = IncidentRecord.from_json((folder / RECORD_FILE).read_bytes())
    names = _tensor_names(folder / TENSORS_FILE, tensors_size)
    missing = [name for name in record.aliases.values() if name not in names]
    if missing:
        raise RecordError(f"{folder} refers to tensors that are missing: {', '.join(missing[:5])}.")
    return Incident(folder, record, names)


def _checked_size(folder: Path, name: str) -> int:
    path = folder / name
    try:
        found = path.lstat()
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder} is not an incident: {name} is missing or cannot be read ({error}).",
            cure="An incident is a folder such as runs/exp1/incidents/000123-r0.",
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise RecordError(
            f"{path} is not a regular file; an incident must not contain links or devices."
        )
    return found.st_size


def _tensor_names(path: Path, size: int) -> frozenset[str]:
    """Return the names in a safetensors file, after checks of its header that need little memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER_BYTES, size):
            raise RecordError(f"{path} specifies a header of {length} bytes, which is impossible.")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} has a header that is not JSON: {error}.") from error
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise RecordError(f"{path} has a header that does not list tensors.")
    try:
        with safe_open(path, framework="pt") as checked:
            return frozenset(checked.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise RecordError(f"{path} is not a safetensors file: {error}.") from error
