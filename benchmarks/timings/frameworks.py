"""Compare Lightning, transformers' Trainer and Accelerate with the guard to themselves with torch's scaler.

Runs of a few steps take turns: stock, guarded, and stock a second time, whose difference from the first is
noise. Each step is measured from start to end by the framework's own callbacks, in wall time and in processor
time of this process; the first steps of a run are left out. Target for the median: at most 1.03. The
operations and host syncs of one step are counted as well; they do not depend on the machine.

``python -m benchmarks.timings.frameworks [lightning] [transformers] [accelerate] [--rounds N] [--steps N]``
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tests.support.counting import OpCounter
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.table import print_table
from benchmarks.timings.guard import GPT2Like, next_token

WARM_UP = 3  # steps of a run that are not measured
CONFIG = {"scale": {"init": 1024.0}, "skip": {"on_nonfinite": "retry_fp32"}}
MAX_NORM = 1.0
Loss = Callable[[nn.Module, Tensor], Tensor]


class Clock:
    """Measures steps in wall time and processor time."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def begin(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.wall.append(time.perf_counter() - self._start[0])
        self.processor.append(time.process_time() - self._start[1])


class Counter:
    """Counts the operations and host syncs of each step."""

    def __init__(self) -> None:
        self.operations: list[int] = []
        self.host_syncs: list[int] = []

    def begin(self) -> None:
        self._ops = OpCounter()
        self._ops.__enter__()

    def end(self) -> None:
        self._ops.__exit__(None, None, None)
        self.operations.append(self._ops.total)
        self.host_syncs.append(self._ops.host_syncs)


class Job:
    """What every framework trains: a model, a loss function, its batches."""

    def __init__(self, model: nn.Module, loss: Loss, data: list[Tensor], fused: bool) -> None:
        self.model, self.loss, self.data, self.fused = model, loss, data, fused
        self.dtypes: set[torch.dtype] = set()  # of what the first matrix product returns
        linear = next(m for m in model.modules() if isinstance(m, nn.Linear))
        linear.register_forward_hook(lambda *given: self.dtypes.add(given[-1].dtype))

    def optimizer(self) -> AdamW:
        parameters = self.model.parameters()
        return AdamW(parameters, lr=1e-4, fused=self.fused, foreach=not self.fused)


# -- each framework runs a job; with a folder, guarded


def with_lightning(job: Job, meter: Clock | Counter, folder: Path | None) -> None:
    from lightning.pytorch import Callback, LightningModule
    from tests.integrations.lightning_runs import fit, guard_plugin, stock_plugin

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model

        def training_step(self, batch: Tensor) -> Tensor:
            return job.loss(self.model, batch)

        def configure_optimizers(self) -> Any:
            return job.optimizer()

    class Steps(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            meter.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            meter.end()

    data: Any = job.data
    plugin = stock_plugin() if folder is None else guard_plugin(CONFIG, run_dir=folder)
    clip = None if job.fused else MAX_NORM  # Lightning alone refuses both together
    fit(Module(), plugin, data, callbacks=[Steps()], gradient_clip_val=clip)


def with_transformers(job: Job, meter: Clock | Counter, folder: Path | None) -> None:
    from tests.integrations.transformers_runs import (
        Guarded,
        StockTrainer,
        arguments,
    )
    from transformers import TrainerCallback

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model

        def forward(self, tokens: Tensor) -> dict[str, Tensor]:
            return {"loss": job.loss(self.model, tokens)}

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            meter.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end()

    size = len(job.data[0])
    with tempfile.TemporaryDirectory() as output:
        args = arguments(
            Path(output),
            per_device_train_batch_size=size,
            max_grad_norm=MAX_NORM,
            logging_strategy="no",
        )
        given: dict[str, Any] = {
            "train_dataset": [{"tokens": row} for batch in job.data for row in batch],
            "optimizers": (job.optimizer(), None),
            "callbacks": [Steps()],
        }
        if folder is None:
            StockTrainer(Inner(), args, **given).train()
        else:
            Guarded(Inner(), args, **given, guard=CONFIG, run_dir=folder).train()


def with_accelerate(job: Job, meter: Clock | Counter, folder: Path | None) -> None:
    from tests.integrations.accelerate_runs import accelerator

    from halfguard.integrations.accelerate import attach

    hub = accelerator()
    guard = None if folder is None else attach(hub, CONFIG, run_dir=folder)
    loader: Any = DataLoader(job.data, batch_size=None)  # type: ignore[arg-type]
    fresh = nn.Sequential(job.model)  # Accelerate marks what it has prepared
    model, optimizer, batches = hub.prepare(fresh, job.optimizer(), loader)
    for batch in batches:
        meter.begin()
        with hub.accumulate(model):
            loss = job.loss(model, batch) if guard is None else guard.forward(job.loss, batch)
            hub.backward(loss)
            hub.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        meter.end()
    hub.end_training()


Framework = Callable[[Job, Clock | Counter, Path | None], None]
FRAMEWORKS: dict[str, Framework] = {
    "lightning": with_lightning,
    "transformers": with_transformers,
    "accelerate": with_accelerate,
}


def run(framework: str, job: Job, meter: Clock | Counter, *, guarded: bool) -> None:
    """Train for one epoch, guarded or not."""
    with tempfile.TemporaryDirectory() as folder:
        FRAMEWORKS[framework](job, meter, Path(folder) if guarded else None)
    if job.dtypes != {torch.float16}:
        raise RuntimeError(f"{framework} ran in {job.dtypes}, and not in FP16")


def added(framework: str, job: Job) -> tuple[int, int]:
    """Return how many operations and host syncs the guard adds to the last step of a run."""
    stock, guarded = Counter(), Counter()
    run(framework, job, stock, guarded=False)
    run(framework, job, guarded, guarded=True)
    operations = guarded.operations[-1] - stock.operations[-1]
    return operations, guarded.host_syncs[-1] - stock.host_syncs[-1]


def measure(framework: str, job: Job, rounds: int) -> None:
    """Let stock, guarded and stock take turns, and print both clocks."""
    contestants = {"stock": False, "guarded": True, "stock again": False}
    wall: dict[str, list[float]] = {who: [] for who in contestants}
    processor: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, guarded in contestants.items():
            clock = Clock()
            run(framework, job, clock, guarded=guarded)
            wall[who].append(median(clock.wall[WARM_UP:]))
            processor[who].append(median(clock.processor[WARM_UP:]))
    size = sum(p.numel() for p in job.model.parameters())
    operations, syncs = added(framework, job)
    print(
        f"\n== {framework}, {size:,} parameters: {operations} operations and {syncs} host syncs more"
    )
    print_table("wall time of a step", wall, against="stock")
    print_table("processor time of a step", processor, against="stock")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=16, help="runs of each contestant")
    parser.add_argument("--steps", type=int, default=6, help="measured steps of a run")
    parser.add_argument("--fused", action="store_true", help="a fused optimizer")
    return parser


def main() -> None:
    chosen = make_parser().parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model = GPT2Like(vocabulary=8192, width=192, length=64)
    data = [torch.randint(0, 8192, (4, 65)) for _ in range(WARM_UP + chosen.steps)]
    job = Job(model, next_token, data, chosen.fused)
    for framework in chosen.frameworks or FRAMEWORKS:
        measure(framework, job, chosen.rounds)


if __name__ == "__main__":
    main()
