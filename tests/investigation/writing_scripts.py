"""Twenty scripts that write, each in its own way: ``python -m tests.investigation.writing_scripts FOLDER``.

Each runs in a pass of ``halfguard why``, in its own folder. Printed as JSON are, by script, how it ended,
and the files that are not byte for byte as before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from halfguard.investigation import Target
from halfguard.investigation.investigating import Investigation
from halfguard.investigation.working_copy import WorkingCopy

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# What each script does after its loop. notes.txt is small, large.bin is linked, not copied; old is a folder.
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
}


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and bytes of all files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(p.relative_to(folder)): (p.stat().st_mode, p.stat().st_mtime_ns, p.read_bytes())
        for p in files
    }


def run(name: str, folder: Path) -> tuple[str, list[str]]:
    """Return how one script ended, and the files that it changed."""
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "kept").write_text("kept")
    (folder / "notes.txt").write_text("mine\n")
    (folder / "large.bin").write_bytes(bytes(9 * 2**20))
    (folder / "train.py").write_text(f"{LOOP}\n{WRITES[name]}\n")
    before = state(folder)
    copied = WorkingCopy(folder.parent / f"copy of {name}", (folder,))
    place = folder.parent / f"pass of {name}"
    place.mkdir()
    one = Investigation(Target(name="train.py"), folder, place, lambda *_: None, copy=copied)
    result = one.run("sense", "running")
    after = state(folder)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return f"{result.ended} {result.error}".strip(), sorted(changed)


def main() -> None:
    place = Path(sys.argv[1]).resolve()
    print(json.dumps({name: run(name, place / name.replace(" ", "_")) for name in WRITES}))


if __name__ == "__main__":
    main()
