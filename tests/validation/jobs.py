"""Small jobs for tests: each trains in a fraction of a second."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfguard import Workload

FEATURES, CLASSES = 8, 3


def data(seed: int, count: int = 64) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=noise)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, CLASSES)
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module) -> dict[str, float]:
    x, y = data(10_000, 256)
    logits = model(x)
    right = (logits.argmax(-1) == y).float().mean()
    return {"accuracy": right.item(), "loss": functional.cross_entropy(logits.float(), y).item()}


def healthy(seed: int) -> Workload:
    """Batches are drawn from the global generator, as an augmentation would."""
    x, y = data(seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(10_000):
            picked = torch.randint(len(x), (16,))
            yield x[picked] + 0.1 * torch.randn(16, FEATURES), y[picked]

    model = network()
    return Workload(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=0.01), accuracy)


def clipped(seed: int) -> Workload:
    return replace(healthy(seed), clip_norm=0.1)


def slow(seed: int) -> Workload:
    """Takes long enough to be killed in the middle; says in files that it began, and that it ended."""
    work = healthy(seed)

    def slow_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        time.sleep(float(os.environ.get("HALFGUARD_TEST_SLEEP", "0")))
        return loss(model, batch)

    def told_accuracy(model: nn.Module) -> dict[str, float]:
        _tell("HALFGUARD_TEST_FINISHED", seed)
        return accuracy(model)

    _tell("HALFGUARD_TEST_STARTED", seed)
    work.loss, work.evaluate = slow_loss, told_accuracy
    return work


def _tell(variable: str, seed: int) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a") as file:
            file.write(f"{seed} {os.getpid()}\n")


def overflowing(seed: int) -> Workload:
    """An energy that leaves the range of half in every batch."""
    work = healthy(seed)

    def energetic(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        energy = torch.einsum("bf,bf->b", 300 * x, 300 * x)  # a matrix product: half under autocast
        return functional.cross_entropy(model(x) + energy.log()[:, None] * 0.01, y)

    work.loss = energetic
    return work


def unpaired(seed: int) -> Workload:
    """Weights from a generator that nobody seeded."""
    work = healthy(seed)
    own = torch.Generator()
    own.seed()
    with torch.no_grad():
        next(work.model.parameters()).normal_(generator=own)
    return work


def raising(seed: int) -> Workload:
    work = healthy(seed)

    def only_fp32(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        if out.dtype != torch.float32:
            raise RuntimeError("no kernel for half")
        return functional.cross_entropy(out, batch[1])

    work.loss = only_fp32
    return work


def giving_up(seed: int) -> Workload:
    """Ends the program at a loss that is not finite, as many a training script does."""
    work = overflowing(seed)
    energetic = work.loss

    def strict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        lost = energetic(model, batch)
        assert isinstance(lost, Tensor)
        if not lost.isfinite():
            sys.exit("Loss is not finite, stopping training")
        return lost

    work.loss = strict
    return work


def dying(seed: int) -> Workload:
    """Its process is killed, as if for lack of memory, as often as the seed's file says."""
    counter = Path(os.environ["HALFGUARD_TEST_DEATHS"]) / str(seed)
    left = int(counter.read_text())
    if left > 0:
        counter.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return healthy(seed)


def not_evaluated(seed: int) -> Workload:
    work = healthy(seed)
    work.evaluate = None
    return work
