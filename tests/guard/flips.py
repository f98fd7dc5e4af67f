"""Flip single bits in a step, and count what the guard says: ``scripts/soak flips [COUNT] [SEED]``.

A bit of one number flips once: in an activation (half), in a gradient of an activation (half), or in a weight
(FP32), which keeps it. *Transient*: the step is bad, and finite when it is run again as it was. *Repeatable*:
it is bad both times. *Unseen*: the step is finite, and applied.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard import Guard

PLACES = ("activation", "gradient", "weight")
CONFIG: dict[str, Any] = {"scale": {"init": 256.0}, "skip": {"on_nonfinite": "retry_fp32"}}
AT, STEPS = 1, 3
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


def answer(place: str, at: int, bit: int, seed: int) -> str:
    """Return what the guard says about a step with this flip."""
    torch.manual_seed(seed)
    model, said = Net(), ""
    guard = Guard(model, SGD(model.parameters(), lr=0.01), CONFIG)
    for step in range(STEPS):
        flips().clear()
        if step == AT:
            flips()[place] = at, bit
        if step == AT and place == "weight":
            model.first.weight.data = flip(model.first.weight.data, place)
        outcome = guard.step(lambda m, x: m(x).float().pow(2).mean(), torch.randn(4, 8))
        if step == AT:
            rows = [getattr(row, "note", "") for row in guard._recorder.journal.recent_rows(5)]
            is_transient = any("transient fault" in note for note in rows)
            bad = "transient" if is_transient else "repeatable"
            said = "unseen" if str(outcome.action) == "apply" else bad
    return said


def main(count: int = 400, seed: int = 0) -> Counter[tuple[str, str]]:
    """Print and return the answers by place."""
    chance, found = random.Random(seed), Counter[tuple[str, str]]()
    for number in range(count):
        place = PLACES[number % len(PLACES)]
        found[place, answer(place, chance.randrange(10**6), chance.randrange(32), number)] += 1
    for place in PLACES:
        print(place, {said: n for (where, said), n in sorted(found.items()) if where == place})
    return found


if __name__ == "__main__":
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    main(*map(int, sys.argv[1:]))
