"""Random faults under FSDP2 in a framework, and the checks after each: no hang, and all ranks decide alike.

``torchrun --nproc-per-node=2 -m tests.integrations.fsdp_faults COUNT [SEED] [FRAMEWORK]``, or ``scripts/soak
sharded``, draws faults; CI runs the same code with a small count. FRAMEWORK is accelerate, trainer or
lightning. Each is a short run: one bad batch on one rank at one step. After a NaN batch the weights are
bitwise those of the framework's own run without that step.
"""

from __future__ import annotations

import faulthandler
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate.state import PartialState

from tests.integrations import accelerate_ranks, lightning_ranks, trainer_ranks
from tests.integrations.accelerate_runs import RETRY, SKIP, Batch, batches
from tests.integrations.lightning_runs import INIT_SCALE, guard_plugin, stock_plugin
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


class Outcome(NamedTuple):
    """This rank's shards after a run, and with a guard, what it counted."""

    state: dict[str, Any]
    counts: Any


def data_of(fault: Fault, rank: int, *, bad: bool) -> list[Batch]:
    """Return a rank's batches, one of them bad; or those of the other steps."""
    data = batches(STEPS * fault.accumulate, seed=rank)
    start = fault.step * fault.accumulate
    if not bad:
        return data[:start] + data[start + fault.accumulate :]
    if rank == fault.rank:
        value = {"nan": torch.nan, "infinity": torch.inf, "large": 1e5}[fault.kind]
        data[start + fault.micro]["x"][0] = value
    return data


def with_accelerate(fault: Fault, guard: dict[str, Any] | None) -> Outcome:
    loop = accelerate_ranks.make(
        "guarded", "none", fault.accumulate, guard=guard, max_norm=fault.max_norm, dropout=0.0
    )
    loop.fit(data_of(fault, dist.get_rank(), bad=guard is not None))
    return Outcome(loop.state(), None if guard is None else loop.counts)


def with_trainer(fault: Fault, guard: dict[str, Any] | None) -> Outcome:
    ranks = range(dist.get_world_size())
    each = [data_of(fault, rank, bad=guard is not None) for rank in ranks]
    # Ranks take batches in turn.
    data = [batch[rank] for batch in zip(*each, strict=True) for rank in ranks]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_ranks.plain(
            Path(folder), data, guard, fault.accumulate, fault.max_norm or 0.0
        )
        trainer.train()
    state = trainer_ranks.state(trainer)
    return Outcome(state, None if guard is None else trainer.guard.counts)


def with_lightning(fault: Fault, guard: dict[str, Any] | None) -> Outcome:
    data = data_of(fault, dist.get_rank(), bad=guard is not None)
    pairs = [(batch["x"].repeat(1, 2)[:, :12], batch["labels"]) for batch in data]
    plugin: Any = stock_plugin()
    if guard is not None:
        plugin = guard_plugin({"scale": {"init": INIT_SCALE}} | guard)
    module = lightning_ranks.Sharded(half=True)
    return Outcome(*lightning_ranks.fit(module, plugin, pairs, fault.accumulate))


FRAMEWORKS = {
    "accelerate": with_accelerate,
    "trainer": with_trainer,
    "lightning": with_lightning,
}


def problems(fault: Fault, framework: str) -> tuple[str, list[str]]:
    """Return what became of the step, and what is wrong with the run."""
    train = FRAMEWORKS[framework]
    state, counts = train(fault, RETRY if fault.retries else SKIP)
    seen = [counts.applied, counts.retried, sum(counts.skipped.values())]
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, seen)
    retried = fault.retries and fault.kind == "large"
    found = []
    if any(one != [STEPS, 1, 0] if retried else one != [STEPS - 1, 0, 1] for one in everywhere):
        found.append(f"ranks counted {everywhere}")
    if not all(bool(value.isfinite().all()) for value in state["model"].values()):
        found.append("a weight is not finite")
    if not retried:
        own = train(fault, None).state
        found += [
            f"{part} differs"
            for part in ("model", "optimizer")
            if differences(state[part], own[part])
        ]
    return "retried" if retried else "skipped", found


def main(count: int, seed: int = 0, framework: str = "accelerate") -> None:
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "halfguard"):
        logging.getLogger(name).setLevel(logging.ERROR)
    group, chance, seen = PartialState(cpu=True), random.Random(seed), Counter[str]()
    wrong = 0
    for _ in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        fault = Fault.draw(chance, group.num_processes)
        what, found = problems(fault, framework)
        seen[what] += 1
        wrong += bool(found)
        if found:
            print(group.process_index, fault, found, flush=True)
    faulthandler.cancel_dump_traceback_later()
    if group.is_main_process:
        print(f"{framework}, {count} faults, seed {seed}: {dict(seen)}, {wrong} wrong")
    group.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int([*sys.argv, "0"][2]), *sys.argv[3:])
