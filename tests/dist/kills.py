"""SIGKILL of random ranks at random steps, under torchrun with restarts: final weights must be bitwise equal.

``python -m tests.dist.kills COUNT [SEED]`` (``scripts/soak kills``) kills COUNT times, several times in one
run; CI kills a few.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.forks import ROOT, forked_path
from tests.support.programs import captured

STEPS, RANKS = 40, 2
KILLS_A_RUN = 5


def train(folder: Path, engine: str, kills: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """Run one job from start to end, with one restart for each kill."""
    folder.mkdir(parents=True)
    command = [
        str(forked_path() / "torchrun"),
        "--standalone",
        f"--nproc-per-node={RANKS}",
        f"--max-restarts={len(kills)}",
        "--monitor-interval=0.1",
        "-m",
        "tests.dist.torchrun_job",
        str(folder),
        engine,
        str(STEPS),
        *(str(number) for kill in kills for number in kill),
    ]
    # With the store that torchrun shares by default, a restarted rank finds addresses of dead ranks.
    # https://github.com/pytorch/pytorch/issues/135712
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    done = captured(*command, env=environment)
    assert done.returncode == 0, done.stderr[-20000:]
    assert len(list(folder.glob("killed-*"))) == len(kills)  # every one of them happened
    return load_file(folder / "end")


def main(count: int, seed: int) -> None:
    """Kill ``count`` times, in runs that alternate between DDP and FSDP2."""
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    in_a_run = min(KILLS_A_RUN, -(-count // 2))  # both engines have their turn
    with tempfile.TemporaryDirectory() as home:
        undisturbed = {e: train(Path(home, e), e, []) for e in ("ddp", "fsdp2")}
        number = 0
        for engine in ("ddp", "fsdp2") * count:
            kills = [
                (chance.randrange(RANKS), chance.randrange(1, STEPS))
                for _ in range(min(in_a_run, count - number))
            ]
            if not kills:
                return
            weights = train(Path(home, f"{engine}-{number}"), engine, kills)
            wrong = [n for n, w in undisturbed[engine].items() if not torch.equal(w, weights[n])]
            assert not wrong, f"seed {seed}, {engine}, kills {kills}: other weights in {wrong}"
            number += len(kills)
            print(f"{number} kills, the same weights at the end", flush=True)


if __name__ == "__main__":
    how_often = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    drawn = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**6)
    main(how_often, drawn)
