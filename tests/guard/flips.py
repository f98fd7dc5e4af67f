"""Flip single bits in a step, and count what the guard says: ``scripts/soak flips [COUNT] [SEED]``.

A bit of one number flips once: in an activation (half), in a gradient of an activation (half), in a weight
(FP32), which keeps it, or in what one of two ranks of DDP gets of a reduced gradient (FP32). *Transient*: the
step is bad, and finite when it is run again as it was. *Repeatable*: it is bad both times. *Desync*: the step
is applied, and the comparison of ranks sees it at the next one. *Hang*: the number is infinite on one rank
only, after DDP has added, so that one rank repeats and the other does not. *Unseen*: the step is finite, and
applied.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from halfguard import Guard
from halfguard.errors import TrainingHaltedError
from tests.support.ranks import HangError, Ranks

PLACES = ("activation", "gradient", "weight", "reduction")
CONFIG: dict[str, Any] = {"scale": {"init": 256.0}, "skip": {"on_nonfinite": "retry_fp32"}}
AT, STEPS = 1, 3
LIMIT = 30.0  # seconds for two ranks
_INTEGERS = {torch.float16: torch.int16, torch.float32: torch.int32}


def flips() -> dict[str, tuple[int, int]]:
    """Return number and bit by place; kept where no guard looks, as the machine's state would be."""
    return vars(torch).setdefault("_flipped_bits", {})  # type: ignore[no-any-return]


def flip(tensor: Tensor, place: str) -> Tensor:
    """Return the tensor, with the flipped bit if there is one at this place."""
    if place not in flips():
        return tensor
    at, bit = flips().pop(place)
    changed = tensor.detach().clone()
    bits = changed.view(-1).view(_INTEGERS[changed.dtype])
    mask = torch.tensor(1).to(torch.int64) << (bit % (bits.element_size() * 8))
    at %= bits.numel()
    bits[at] = (bits[at].to(torch.int64) ^ mask).to(bits.dtype)
    return changed


class Flipped(torch.autograd.Function):
    """The identity, in which a bit may flip on the way."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return flip(x, "activation").clone()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return flip(grad, "gradient").clone()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(Flipped.apply(self.first(x))))  # type: ignore[no-any-return]


def reduce(_state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own
    """Add the gradients of ranks; a bit may flip where the last rank receives them."""
    dist.all_reduce(bucket.buffer())
    summed = bucket.buffer() / dist.get_world_size()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(flip(summed, "reduction"))
    return future


def answer(place: str, at: int, bit: int, seed: int) -> str:
    """Return what the guard says about a step with this flip; on every rank, for a reduction."""
    torch.manual_seed(seed)
    net, said, rank = Net(), "", 0
    model: nn.Module = net
    if place == "reduction":
        model, rank = DistributedDataParallel(net), dist.get_rank()
        model.register_comm_hook(None, reduce)
    guard = Guard(model, SGD(model.parameters(), lr=0.01), CONFIG | {"desync": {"every": 1}})
    for step in range(STEPS):
        flips().clear()
        if step == AT and (place != "reduction" or rank == 1):
            flips()[place] = at, bit
        if step == AT and place == "weight":
            net.first.weight.data = flip(net.first.weight.data, place)
        try:
            outcome = guard.step(lambda m, x: m(x).float().pow(2).mean(), torch.randn(4, 8))
        except TrainingHaltedError as error:
            return "desync" if "HG616" in str(error) else "halt"
        if step == AT:
            rows = [getattr(row, "note", "") for row in guard._recorder.journal.recent_rows(5)]
            is_transient = any("transient fault" in note for note in rows)
            bad = "transient" if is_transient else "repeatable"
            said = "unseen" if str(outcome.action) == "apply" else bad
    return said


def main(count: int = 400, seed: int = 0) -> Counter[tuple[str, str]]:
    """Print and return the answers by place."""
    chance, found = random.Random(seed), Counter[tuple[str, str]]()
    ranks = Ranks(2)
    for number in range(count):
        place = PLACES[number % len(PLACES)]
        flipped = place, chance.randrange(10**6), chance.randrange(32), number
        if place == "reduction":
            try:
                [said] = set(ranks.run(answer, *flipped, timeout=LIMIT))  # all ranks say the same
            except AssertionError as error:
                said, ranks = "hang" if isinstance(error, HangError) else "error", Ranks(2)
        else:
            said = answer(*flipped)
        found[place, said] += 1
    ranks.close()
    for place in PLACES:
        print(place, {said: n for (where, said), n in sorted(found.items()) if where == place})
    return found


if __name__ == "__main__":
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    main(*map(int, sys.argv[1:]))
