"""Measure the cost of ``halfguard why``: its first pass on a script, and an answer for a late failure.

The first pass: processor seconds per step of a transformer of 6M parameters, in a script of its own, bare and
under the sensors, interleaved; and again in one process, where every other step is not observed, which a busy
machine disturbs less. A late failure: processor seconds of the whole command for a script that fails
at step 5,000, and of the script alone up to there; both with their imports.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import print_table
from halfguard.investigation import Target
from halfguard.investigation.investigating import Investigation

ROOT = Path(__file__).resolve().parents[1]

# The sensors stay; every other step has no listener.
ALTERNATING = """
import sys, time
from pathlib import Path
import torch
import torch.nn.functional as F
from benchmarks.timings.trace import Gpt
from halfguard.investigation.bus import HookBus
from halfguard.investigation.passes import PassPlan, Target
from halfguard.investigation.sensing import Sensing
from halfguard.investigation.working_copy import Surroundings

folder = Path.cwd()
plan = PassPlan(
    kind="sense", target=Target(name="none.py"), folder=str(folder),
    answer=str(folder / "answer.json"), losses=str(folder / "losses.bin"),
)
bus, surroundings = HookBus(), Surroundings(plan)
bus.install()
surroundings.watch()
Sensing(plan, bus, surroundings)
publish = bus.publish
torch.manual_seed(0)
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
seconds = []
for step in range(2 * int(sys.argv[2]) + 6):
    bus.publish = publish if step % 2 else (lambda *_: None)
    began = time.process_time()
    ids = torch.randint(0, 4096, (4, 64))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seconds.append(time.process_time() - began)
with open(sys.argv[1], "w") as file:
    file.write(" ".join(map(str, seconds[6:])))
"""

STEADY = """
import sys, time
import torch
from benchmarks.timings.trace import Gpt
import torch.nn.functional as F

torch.manual_seed(0)
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
began = 0.0
for step in range(int(sys.argv[2]) + 3):
    if step == 3:
        began = time.process_time()
    ids = torch.randint(0, 4096, (4, 64))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open(sys.argv[1], "w") as file:
    file.write(str((time.process_time() - began) / int(sys.argv[2])))
"""

LATE = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(5001):
    x = torch.randn(64, 64)
    out = net(x)
    if step == 5000:
        out = out * 0
    loss = (out / out.abs().sum()).sum() if step == 5000 else out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def one_pass(folder: Path, steps: int, *, sensed: bool) -> float:
    """Return the processor seconds per step of one run."""
    out = folder / "seconds.txt"
    out.unlink(missing_ok=True)
    arguments = (str(out), str(steps))
    if sensed:
        os.chdir(folder)
        target = Target(name="steady.py", arguments=arguments)
        Investigation(target, folder, folder, lambda *_: None).run("sense", "running")
    else:
        subprocess.run([sys.executable, "steady.py", *arguments], cwd=folder, check=True)
    return float(out.read_text())


def alternating(folder: Path, steps: int) -> dict[str, list[float]]:
    """Return the processor seconds of steps that are not observed, and of those that are, in one process."""
    out = folder / "alternating.txt"
    command = [sys.executable, "alternating.py", str(out), str(steps)]
    subprocess.run(command, cwd=folder, check=True)
    seconds = [float(text) for text in out.read_text().split()]
    return {"not observed": seconds[::2], "observed": seconds[1::2]}


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(folder: Path, *line: str) -> float:
    """Return the processor seconds of a command and of all that it starts."""
    before = children()
    subprocess.run([sys.executable, *line], cwd=folder, check=False, capture_output=True)
    return children() - before


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        (folder / "steady.py").write_text(STEADY)
        (folder / "late.py").write_text(LATE)
        (folder / "alternating.py").write_text(ALTERNATING)
        seconds: dict[str, list[float]] = {"the script alone": [], "under the sensors": []}
        for _ in range(options.rounds):
            for name, found in seconds.items():
                sensed = name != "the script alone"
                found.append(one_pass(folder, options.steps, sensed=sensed))
        title = "The first pass of why: one step of a transformer of 6M parameters"
        print_table(title, seconds, against="the script alone")
        title = "The same steps in one process, every other one observed"
        print_table(title, alternating(folder, 5 * options.steps), against="not observed")
        alone = command(folder, "late.py")
        asked = command(folder, "-m", "halfguard", "why", "--json", "late.py")
        print(
            f"\nA failure at step 5,000: {alone:.1f} s alone, {asked / alone:.2f} times that asked why"
        )


if __name__ == "__main__":
    main()
