"""Train a model whose RMS norm swallows an overflow: bare, guarded, healed, and in FP32, over several seeds.

A quarter of the samples is loud, so that ``x * x`` leaves the range of half, and ``x / inf`` is 0. Loss and
gradients stay finite: no step is refused. ``heal`` with ``watch`` finds the norm, and keeps it in FP32.
"""

from __future__ import annotations

import argparse
import logging
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.precision_names import Precision
from halfguard.step.random_state import seeded
from halfguard.workload import TrainingStep

CONFIGS: dict[str, dict[str, Any]] = {
    "guarded": {},
    "healed": {"heal": {}, "watch": {"every": 50}},
}
Batch = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """The norm as it is often written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.gain


def make_model() -> nn.Module:
    """Return two blocks of linear layer, norm and activation, and a head."""
    return nn.Sequential(
        *(nn.Linear(16, 32), RMSNorm(32), nn.GELU()),
        *(nn.Linear(32, 32), RMSNorm(32), nn.GELU()),
        nn.Linear(32, 4),
    )


def make_batches(count: int, rows: int = 64) -> list[Batch]:
    """Return batches in which a quarter of the samples is 800 times louder, with the same classes."""
    batches = []
    for _ in range(count):
        x = torch.randn(rows, 16)
        y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
        x[::4] *= 800
        batches.append((x, y))
    return batches


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def train(form: str, seed: int, steps: int) -> tuple[float, str]:
    """Train in one form; return the validation loss in FP32, and what happened."""
    with seeded(seed):
        model, batches, validation = make_model(), make_batches(steps), make_batches(8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        note = ""
        if form in CONFIGS:
            guard = hg.Guard(model, optimizer, CONFIGS[form])
            applied = sum(guard.step(loss_fn, batch).applied for batch in batches)
            healed = (guard.state_dict()["healing"] or {}).get("healed", [])
            note = f"{applied} of {steps} applied"
            note += "".join(
                f", {one['island']['module']} from step {one['since']}" for one in healed
            )
        else:
            work = hg.Workload(model, loss_fn, batches, optimizer)
            precision = Precision.FP32 if form == "fp32" else Precision.FP16_MIXED
            step = TrainingStep(work, precision, cuda_rules=False)
            for batch in batches:
                step(batch)
        with torch.no_grad():
            return mean(loss_fn(model, batch).item() for batch in validation), note


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    return parser


def main() -> None:
    """Print the validation loss of every form and seed, relative to FP32."""
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    options = make_parser().parse_args()
    print(f"{'seed':<6}{'FP32':>8}{'bare':>9}{'guarded':>9}{'healed':>9}  relative to FP32")
    for seed in range(options.seeds):
        wide, _ = train("fp32", seed, options.steps)
        ends = {form: train(form, seed, options.steps) for form in ("bare", "guarded", "healed")}
        shares = "".join(f"{loss / wide - 1:>+9.1%}" for loss, _ in ends.values())
        print(
            f"{seed:<6}{wide:>8.4f}{shares}  {ends['guarded'][1]}; {ends['healed'][1]}", flush=True
        )


if __name__ == "__main__":
    main()
