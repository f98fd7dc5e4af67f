"""Random faults on random ranks, and the checks after each: no rank hangs, and all ranks agree.

``python -m tests.dist.faults COUNT [SEED]`` (or ``scripts/soak ranks``) draws faults from a printed seed; CI
runs the same code with a small count. Each fault is a short run on real processes: DDP or FSDP2, 2 or 4
ranks, one fault on one rank at one step in one layer. The run is repeated in one process on the whole batch.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

import halfguard as hg
from halfguard.errors import TrainingHaltedError
from tests.dist.jobs import (
    PER_RANK,
    Engine,
    Plan,
    batch_of,
    full_state,
    loss_fn,
    make,
    optimizer_of,
)
from tests.support.ranks import Ranks

Kind = Literal["forward", "forward-hard", "gradient", "gradient-hard", "batch", "spike"]
KINDS: tuple[Kind, ...] = ("forward", "forward-hard", "gradient", "gradient-hard", "batch", "spike")
CONFIGS: dict[str, dict[str, Any]] = {
    "skip": {},
    "retry": {"skip": {"on_nonfinite": "retry_fp32"}},
    "raise": {"skip": {"on_nonfinite": "raise"}},
    "halt": {"skip": {"max_consecutive": 2}},
    "roll-back": {"skip": {"max_consecutive": 2}, "recovery": {"every": 2, "max_rollbacks": 2}},
}
STEPS = 8


@dataclass(frozen=True)
class Fault:
    """One fault, and the run in which it happens."""

    engine: Engine
    ranks: int
    kind: Kind
    rank: int
    step: int
    lasting: int  # steps in a row
    layer: int
    config: str
    clip: bool
    accumulate: int
    optimizer: str

    @classmethod
    def draw(cls, chance: random.Random) -> Fault:
        ranks = chance.choice([2, 4])
        return cls(
            engine=chance.choice(["ddp", "fsdp2"]),
            ranks=ranks,
            kind=chance.choice(KINDS),
            rank=chance.randrange(ranks),
            step=chance.randrange(2, STEPS - 2),
            lasting=chance.choice([1, 1, 3]),
            layer=chance.randrange(3),
            config=chance.choice(list(CONFIGS)),
            clip=chance.random() < 0.5,
            accumulate=chance.choice([1, 1, 2]),
            optimizer=chance.choice(["sgd", "adamw-fused"]),
        )


@dataclass
class Ending:
    """The result of the run on one rank."""

    steps: list[tuple[str, str, float, tuple[str, ...], tuple[int, ...]]]
    scale: float
    halted: bool
    weights: dict[str, torch.Tensor]


def run(fault: Fault, alone: bool = False) -> Ending:
    """Run one rank; ``alone`` is a single process with the batches of all ranks."""
    model, net = make("alone" if alone else fault.engine)
    optimizer = optimizer_of(model, fault.optimizer)
    config = {
        "accumulate": fault.accumulate,
        "scale": {"init": 256.0, "growth_interval": 3},
        "clip": {"max_norm": 1.0} if fault.clip else None,
        "desync": {"every": 1},
        **CONFIGS[fault.config],
    }
    config["skip"] = {"max_grad_norm": 8.0, **config.get("skip", {})}
    guard = hg.Guard(model, optimizer, config)
    mine = None if alone else dist.get_rank()
    steps, halted = [], False
    try:
        for index in range(STEPS * fault.accumulate):
            batch = batch_of(index, fault.ranks, mine)
            step, micro = divmod(index, fault.accumulate)
            now = fault.step <= step < fault.step + fault.lasting and micro == 0
            rows = _rows(fault.rank, mine) if now else slice(0)
            net.plan = _plan(fault, rows)
            if fault.kind == "batch":
                batch[0][rows] = torch.nan
            outcome = guard.step(loss_fn, batch)
            if micro == fault.accumulate - 1:
                steps.append(
                    (
                        str(outcome.action),
                        str(outcome.cause),
                        outcome.scale,
                        outcome.culprits,
                        outcome.ranks,
                    )
                )
    except TrainingHaltedError:
        halted = True
    return Ending(steps, guard.scaler.get_scale(), halted, full_state(model))


def _rows(faulty: int, mine: int | None) -> slice:
    if mine is None:
        return slice(faulty * PER_RANK, (faulty + 1) * PER_RANK)
    return slice(None) if mine == faulty else slice(0)


def _plan(fault: Fault, rows: slice) -> Plan:
    hard = fault.kind.endswith("-hard")
    if fault.kind.startswith("forward"):
        return Plan(fault.layer, rows, value=torch.inf, in_half_only=not hard)
    if fault.kind.startswith("gradient"):
        return Plan(fault.layer, rows, gradient=torch.inf, in_half_only=not hard)
    if fault.kind == "spike":
        return Plan(fault.layer, rows, gradient=200.0, in_half_only=False)
    return Plan()


def problems(fault: Fault, endings: list[Ending], alone: Ending) -> list[str]:
    """Return a description of everything that is wrong with a run; empty if all is well."""
    first, found = endings[0], []
    for rank, ending in enumerate(endings[1:], 1):
        if (ending.steps, ending.scale, ending.halted) != (first.steps, first.scale, first.halted):
            found.append(f"rank {rank} saw {ending.steps}, rank 0 saw {first.steps}")
        unequal = [n for n in first.weights if not torch.equal(ending.weights[n], first.weights[n])]
        if unequal:
            found.append(f"rank {rank} has other weights than rank 0 in {unequal}")
    taken = [step[:3] for step in first.steps], first.scale, first.halted
    expected = [step[:3] for step in alone.steps], alone.scale, alone.halted
    if taken != expected:
        found.append(f"ranks: {taken}\nalone: {expected}")
    else:
        error = max((first.weights[n] - w).abs().max().item() for n, w in alone.weights.items())
        # Each rank rounds its gradients to half before they are added. A step of AdamW changes a weight
        # by about 1e-2, and a step of SGD here by about as much.
        if not error < 5e-3:
            found.append(f"weights differ from one process by {error:.2g}")
    if not all(torch.isfinite(w).all() for w in first.weights.values()):
        found.append("weights are not finite")
    if fault.kind in {"forward", "forward-hard", "batch"}:
        named = {ranks for _, cause, _, _, ranks in first.steps if cause in _NAMED}
        if named - {(fault.rank,)}:
            found.append(f"ranks {named} were blamed")
    return found


_NAMED = {"forward_overflow", "bad_batch"}


def main(count: int, seed: int, *, show: bool = True) -> Counter[str]:
    """Run ``count`` faults; return how often each action was taken."""
    print(f"seed {seed}", flush=True)
    chance, groups = random.Random(seed), {n: Ranks(n) for n in (2, 4)}
    taken: Counter[str] = Counter()
    started = time.monotonic()
    try:
        for number in range(count):
            fault = Fault.draw(chance)
            endings = groups[fault.ranks].run(run, fault)
            found = problems(fault, endings, run(fault, alone=True))
            assert not found, f"fault {number} of seed {seed}: {asdict(fault)}\n" + "\n".join(found)
            taken.update(f"{a}: {c}" for a, c, *_ in endings[0].steps if c != "None")
            taken.update(["halted"] if endings[0].halted else [])
            if show and (number + 1) % 50 == 0:
                print(f"{number + 1} faults, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        for group in groups.values():
            group.close()
    return taken


if __name__ == "__main__":
    how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    drawn = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**6)
    for what, times in sorted(main(how_many, drawn).items()):
        print(f"{times:6d}  {what}")
    print(f"{how_many} faults: every rank took the same action, no hang")
