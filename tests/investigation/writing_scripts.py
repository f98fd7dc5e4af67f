"""Scripts that write, each in its own way: ``scripts/soak writes [NAME ...] [--one-pass]``.

Each has a bad number after it has written, so all passes of ``halfguard why`` run: the first one, the one
that tracks, the trials, and the proof of the patch. With ``--one-pass`` only the first one runs. Printed as
JSON are, by script, how it ended, and what is not byte for byte as before.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import torch._dynamo  # noqa: F401 - the first optimizer of each pass would import it
from benchmarks.why_truth.truth import ask_in_fork

from halfguard.investigation import Target, good_runs, proof
from halfguard.investigation.investigating import Investigation
from halfguard.investigation.working_copy import WorkingCopy

# A loop with a bad number in step 2, which a patch of the line prevents; it writes in step 1.
LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(5):
    if step == 1:
        {writes}
    y = net(torch.randn(8, 4) * (2000 if step == 2 else 1)).half()
    loss = (y * y).float().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""

# What each script does. notes.txt is small, large.bin is linked, not copied; old is a folder.
WRITES = {
    "appends": "open('notes.txt', 'a').write('x')",
    "overwrites": "open('notes.txt', 'w').write('x')",
    "checkpoint": "torch.save(net.state_dict(), 'last.pt')",
    "checkpoint over a large file": "torch.save(net.state_dict(), 'large.bin')",
    "large in place": "f = open('large.bin', 'r+b'); f.write(b'changed'); f.close()",
    "memory map": "import numpy as np; a = np.memmap('large.bin', 'u1', 'r+'); a[0] = 7; a.flush()",
    "numpy": "import numpy as np; np.save('weights.npy', net.weight.detach().numpy())",
    "json below a new folder": "import os; os.makedirs('out/a'); open('out/a/m.json', 'w').write('[1]')",
    "removes": "import os; os.remove('notes.txt')",
    "removes a large file": "import os; os.remove('large.bin')",
    "removes a folder": "import shutil; shutil.rmtree('old')",
    "renames": "import os; os.rename('notes.txt', 'notes.bak')",
    "replaces": "from pathlib import Path; Path('new').write_text('x'); Path('new').replace('notes.txt')",
    "changes mode": "import os; os.chmod('large.bin', 0o600)",
    "truncates": "import os; os.truncate('large.bin', 10)",
    "database": "import sqlite3; d = sqlite3.connect('runs.db'); d.execute('create table t (x)'); d.commit()",
    "archive": "import shutil; shutil.make_archive('backup', 'zip', 'old')",
    "log": "import logging; logging.basicConfig(filename='run.log'); logging.warning('x')",
    "process": "import subprocess; subprocess.run(['sh', '-c', 'echo x >> notes.txt; rm -r old'])",
    "moves into a folder": "import shutil; shutil.move('notes.txt', 'old/notes.txt')",
    "low level": "import os; d = os.open('large.bin', os.O_WRONLY); os.write(d, b'low'); os.close(d)",
    "changes times": "import os; os.utime('large.bin', (1, 1))",
    "touches": "from pathlib import Path; Path('notes.txt').touch()",
    "makes a link": "import os; os.symlink('notes.txt', 'link')",
}


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and bytes of all files, and the modes of folders."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        is_file = path.is_file()
        time = facts.st_mtime_ns if is_file else 0
        found[str(path.relative_to(folder))] = (
            facts.st_mode,
            time,
            path.read_bytes() if is_file else b"",
        )
    return found


def run(name: str, folder: Path, *, one_pass: bool) -> tuple[str, list[str]]:
    """Return how one script ended, and the files that it changed."""
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "kept").write_text("kept")
    (folder / "notes.txt").write_text("mine\n")
    (folder / "large.bin").write_bytes(bytes(9 * 2**20))
    (folder / "train.py").write_text(LOOP.format(writes=WRITES[name]))
    before = state(folder)
    ended = _run_one_pass(name, folder) if one_pass else _ask(folder)
    after = state(folder)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return ended, sorted(changed)


def _run_one_pass(name: str, folder: Path) -> str:
    copied = WorkingCopy(folder.parent / f"copy of {name}", (folder,))
    place = folder.parent / f"pass of {name}"
    place.mkdir()
    one = Investigation(Target(name="train.py"), folder, place, lambda *_: None, copy=copied)
    result = one.run("sense", "running")
    return " ".join((result.ended, result.error, *result.outside)).strip()


def _ask(folder: Path) -> str:
    """Run the whole command; return "proven" if all of its passes have run."""
    for module in (proof, good_runs):
        vars(module)["SOON_SECONDS"] = math.inf  # on a slow machine too
    answer = ask_in_fork(Target(name="train.py"), folder)
    if answer.cure is not None and answer.cure.trial.endswith(proof.PROOF):
        return "proven"
    return f"{answer.outcome} {answer.event} {answer.error}; {answer.trials}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names")
    parser.add_argument("--one-pass", action="store_true")
    options = parser.parse_args()
    names = [name for name in WRITES if name.startswith(tuple(options.names) or "")]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve() / name.replace(" ", "_")
            found[name] = run(name, folder, one_pass=options.one_pass)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))
    sys.exit(any(changed for _, changed in found.values()))


if __name__ == "__main__":
    main()
