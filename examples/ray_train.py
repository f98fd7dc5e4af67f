"""Ray's TorchTrainer with the plain guard: two CPU workers, FP16, a NaN batch on one of them.

``python examples/ray_train.py runs/ray`` trains; no adapter is needed, because ``prepare_model`` wraps
the model in DDP, and each worker makes a guard for it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from torch import Tensor, nn

import halfguard as hg

STEPS = 12


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs).float(), targets)


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return this worker's part of the data for a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 8, generator=generator)
    if (step, rank) == (6, 1):
        inputs[0] = torch.nan  # one bad sample, on one worker
    return inputs, inputs[:, :1]


def train_on_worker(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model = ray.train.torch.prepare_model(model)
    dtypes = set()
    model.register_forward_hook(lambda *call: dtypes.add(str(call[-1].dtype)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = hg.Guard(model, optimizer, {"scale": {"init": 1024}}, run_dir=config["run_dir"])
    for step in range(STEPS):
        guard.step(loss_fn, batch_of(step, rank))
    summary = guard.close()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with tempfile.TemporaryDirectory() as folder:
        # The guard's state has the random state of each worker.
        torch.save(state | {"guard": guard.state_dict()}, Path(folder, f"worker-{rank}.pt"))
        metrics = {"applied": summary.applied, "steps": summary.steps, "dtypes": sorted(dtypes)}
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main(folder: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train_on_worker,
        train_loop_config={"run_dir": str(folder / "guard")},
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=RunConfig(name="guarded", storage_path=str(folder)),
    )
    result = trainer.fit()
    metrics = result.metrics
    print(f"{metrics['applied']} of {metrics['steps']} steps applied, in {metrics['dtypes']}")
    print(f"checkpoint: {result.checkpoint.path}")
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
