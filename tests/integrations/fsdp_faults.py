"""Random faults under Accelerate's FSDP2, and the checks after each: no hang, and all ranks decide alike.

``torchrun --nproc-per-node=2 -m tests.integrations.fsdp_faults COUNT [SEED]``, or ``scripts/soak sharded``,
draws faults; CI runs the same code with a small count. Each is a short run: one bad batch on one rank at
one step. After a NaN batch the weights are bitwise those of Accelerate's own run without that step.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import PartialState

from tests.integrations.accelerate_runs import RETRY, SKIP, Batch, batches
from tests.integrations.fsdp_ranks import make
from tests.support.models import differences

STEPS = 4
LIMIT = 120.0  # seconds for one fault: more is a hang


@dataclass(frozen=True)
class Fault:
    """One bad batch, and the run in which it happens."""

    kind: str
    rank: int
    step: int
    micro: int
    accumulate: int
    retries: bool
    max_norm: float | None

    @classmethod
    def draw(cls, chance: random.Random, ranks: int) -> Fault:
        accumulate = chance.choice([1, 1, 3])
        return cls(
            kind=chance.choice(["nan", "infinity", "large"]),
            rank=chance.randrange(ranks),
            step=chance.randrange(STEPS),
            micro=chance.randrange(accumulate),
            accumulate=accumulate,
            retries=chance.random() < 0.5,
            max_norm=chance.choice([None, 0.5]),
        )


def data_of(fault: Fault, *, bad: bool) -> list[Batch]:
    """Return this rank's batches, one of them bad; or those of the other steps."""
    data = batches(STEPS * fault.accumulate, seed=dist.get_rank())
    start = fault.step * fault.accumulate
    if not bad:
        return data[:start] + data[start + fault.accumulate :]
    if dist.get_rank() == fault.rank:
        value = {"nan": torch.nan, "infinity": torch.inf, "large": 1e5}[fault.kind]
        data[start + fault.micro]["x"][0] = value
    return data


def train(fault: Fault, guard: dict[str, Any] | None) -> Any:
    loop = make(
        "guarded", "none", fault.accumulate, guard=guard, max_norm=fault.max_norm, dropout=0.0
    )
    return loop.fit(data_of(fault, bad=guard is not None))


def problems(fault: Fault) -> tuple[str, list[str]]:
    """Return what became of the step, and what is wrong with the run."""
    loop = train(fault, RETRY if fault.retries else SKIP)
    counts = loop.counts
    seen = [counts.applied, counts.retried, sum(counts.skipped.values())]
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, seen)
    retried = fault.retries and fault.kind == "large"
    found = []
    if any(one != [STEPS, 1, 0] if retried else one != [STEPS - 1, 0, 1] for one in everywhere):
        found.append(f"ranks counted {everywhere}")
    state = loop.state()
    if not all(bool(value.isfinite().all()) for value in state["model"].values()):
        found.append("a weight is not finite")
    if not retried:
        own = train(fault, None).state()
        found += [
            f"{part} differs"
            for part in own
            if part != "rates" and differences(state[part], own[part])
        ]
    return "retried" if retried else "skipped", found


def main(count: int, seed: int = 0) -> None:
    group, chance, seen = PartialState(cpu=True), random.Random(seed), Counter[str]()
    wrong = 0
    for _ in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        fault = Fault.draw(chance, group.num_processes)
        what, found = problems(fault)
        seen[what] += 1
        wrong += bool(found)
        if found:
            print(group.process_index, fault, found, flush=True)
    faulthandler.cancel_dump_traceback_later()
    if group.is_main_process:
        print(f"{count} faults, seed {seed}: {dict(seen)}, {wrong} wrong")
    group.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
