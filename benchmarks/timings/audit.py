"""Measure the cost of an audited step: audit() and find_first_nonfinite() beside the bare step.

One forward and backward pass of a GPT-2 of 6M parameters under CUDA's float16 autocast rules, on one thread,
in processor seconds, interleaved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.table import print_table, rounds_parser
from benchmarks.timings.trace import Gpt
from halfguard.precision.emulation import emulate_autocast
from halfguard.tracing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.workload.timing import time_interleaved


def steps_of(batch: int) -> dict[str, Callable[[], object]]:
    """Return the bare step and its audited forms."""
    torch.manual_seed(0)
    model, ids = Gpt(), torch.randint(4096, (batch, 128))

    def loss() -> Tensor:
        with emulate_autocast("cuda"):
            logits = model(ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten()) * 1024

    def bare() -> None:
        model.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]

    return {
        "bare": bare,
        "audit": lambda: audit(loss, model),
        "find_first_nonfinite": lambda: find_first_nonfinite(loss, model),
    }


make_parser = partial(rounds_parser, __doc__, 7)


def main() -> None:
    rounds = make_parser().parse_args().rounds
    torch.set_num_threads(1)
    for batch in (2, 8):
        seconds = time_interleaved(steps_of(batch), rounds=rounds, clock=time.process_time)
        print_table(f"GPT-2 of 6M, batch {batch} x 128", seconds, against="bare")


if __name__ == "__main__":
    main()
