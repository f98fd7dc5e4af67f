"""``scripts/soak incident [KILLS] [FOLDERS]``: the tests of the store with counts of one's own choice."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.incident.test_store import kill_while_writing, survive_hostile


def main(kills: int = 200, folders: int = 20_000) -> None:
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = kill_while_writing(Path(folder), kills, seed)
    print(f"{kills} kills: {whole} whole incidents, every one of them opened and right", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        opened, refused = survive_hostile(Path(folder), folders, seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{folders} hostile folders: {opened} opened, {refused} refused; peak {peak:.0f} MiB")
    assert peak < 1024, "more than 1 GiB"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
