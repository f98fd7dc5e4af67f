"""Train a few FP16 steps, one on a NaN batch, with the log function of a real tracker.

``python -m tests.integrations.tracked_run TRACKER FOLDER`` trains, closes the tracker, opens what it wrote
with the tracker's own reader, and prints ``{step: {name: value}}`` as JSON.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import halfguard as hg

BAD_STEP, STEPS, EVERY = 7, 12, 5
Seen = dict[int, dict[str, float]]


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    y = model(batch)
    assert y.dtype == torch.float16
    loss: Tensor = y.float().square().mean()
    return loss


def train(log: Callable[[Any, int], object]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"scale": {"init": 1024.0}}
    guard = hg.Guard(model, optimizer, config, log=log, log_every=EVERY)
    for step in range(STEPS):
        batch = torch.randn(8, 4)
        guard.step(loss_fn, batch if step != BAD_STEP else batch * torch.nan)
    guard.close()


def tensorboard(folder: Path) -> Seen:
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        add = writer.add_scalar
        train(lambda metrics, step: [add(name, value, step) for name, value in metrics.items()])
    return read_events(folder)


def read_events(folder: Path) -> Seen:
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
        event_accumulator,
    )

    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    seen: Seen = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            seen.setdefault(event.step, {})[name] = event.value
    return seen


def wandb(folder: Path) -> Seen:
    import wandb

    run = wandb.init(mode="offline", project="halfguard", dir=folder)
    train(wandb.log)
    run.finish()
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder / "wandb")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return {
        row["_step"]: {k: float(v) for k, v in row.items() if k.startswith("halfguard/")}
        for row in rows
    }


def mlflow(folder: Path) -> Seen:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("halfguard")
    with mlflow.start_run():
        train(mlflow.log_metrics)
    query = "metrics.`halfguard/skipped/bad_batch` > 0"  # which runs met a bad batch?
    (run,) = mlflow.search_runs(filter_string=query, output_format="list")
    client, seen = mlflow.MlflowClient(), Seen()
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            seen.setdefault(point.step, {})[name] = point.value
    return seen


def lightning(folder: Path) -> Seen:
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(folder)
    train(logger.log_metrics)
    logger.finalize("success")
    return read_events(Path(logger.log_dir))


def lightning_csv(folder: Path) -> Seen:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(folder)
    train(logger.log_metrics)
    logger.save()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {int(row.pop("step")): {k: float(v) for k, v in row.items()} for row in rows}


def accelerate(folder: Path) -> Seen:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
    accelerator.init_trackers("halfguard")
    train(accelerator.log)
    accelerator.end_training()
    return read_events(folder / "halfguard")


TRACKERS: dict[str, Callable[[Path], Seen]] = {
    function.__name__: function
    for function in (tensorboard, wandb, mlflow, lightning, lightning_csv, accelerate)
}

if __name__ == "__main__":
    print(json.dumps(TRACKERS[sys.argv[1]](Path(sys.argv[2]))))
