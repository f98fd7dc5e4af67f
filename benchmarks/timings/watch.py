"""Measure the cost of a watched step: the guard with every step sampled beside the guard without a watch.

Whole guarded steps, optimizer included, on one thread, in processor seconds, interleaved. The last column
spreads the cost of the sampled step over the default interval of 200 steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.table import rounds_parser
from benchmarks.timings.trace import Gpt
from halfguard import Guard
from halfguard.guard.config import WatchConfig
from halfguard.workload.timing import time_interleaved


def next_token(model: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())


def classify(model: Any, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), x[:, 0].long() % 4)


def mlp() -> nn.Module:
    layers = [part for _ in range(8) for part in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 4))


def jobs() -> dict[str, tuple[Callable[[], nn.Module], Any, Tensor, dict[str, Any]]]:
    """Return model, loss function, batch and configuration of each job."""
    ids = torch.randint(4096, (4, 128))
    half = {"precision": "fp16-mixed", "scale": {"init": 1024.0}}
    return {
        "GPT-2 of 6M, float16": (Gpt, next_token, ids, half),
        "GPT-2 of 6M, bfloat16 weights": (
            lambda: Gpt().bfloat16(),
            next_token,
            ids,
            {"precision": "bf16-mixed"},
        ),
        "MLP of 9 layers, float16": (mlp, classify, torch.randn(256, 256).abs(), half),
    }


def guarded(make: Callable[[], nn.Module], loss: Any, batch: Tensor, config: Any) -> Any:
    torch.manual_seed(0)
    model = make()
    guard = Guard(model, AdamW(model.parameters(), lr=1e-4), config | {"incidents": None})
    return lambda: guard.step(loss, batch)


make_parser = partial(rounds_parser, __doc__, 7)


def main() -> None:
    rounds = make_parser().parse_args().rounds
    torch.set_num_threads(1)
    every = WatchConfig().every
    print(f"{'job':34}{'guarded s':>10}{'sampled s':>11}{'ratio':>8}{f'over {every}':>11}")
    for name, (make, loss, batch, config) in jobs().items():
        steps = {
            "guarded": guarded(make, loss, batch, config),
            "sampled": guarded(make, loss, batch, config | {"watch": {"every": 1}}),
        }
        seconds = time_interleaved(steps, rounds=rounds, clock=time.process_time)
        bare, sampled = (median(seconds[key]) for key in steps)
        ratio = sampled / bare
        spread = 1 + (ratio - 1) / every
        print(f"{name:34}{bare:10.4f}{sampled:11.4f}{ratio:8.2f}{spread:11.4f}")


if __name__ == "__main__":
    main()
