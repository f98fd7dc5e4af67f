"""``scripts/soak validate [KILLS]``: the test of resuming with a count of one's own choice."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.validation.test_resume import kill_and_resume


def main(kills: int = 20) -> None:
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        killing = kill_and_resume(Path(folder), kills, seed, longest=20)
    print(
        f"{killing.kills} kills over {killing.sweeps} sweeps: every sweep ended with the runs of one that "
        "was never killed, bit for bit; no finished run was lost or run again"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
