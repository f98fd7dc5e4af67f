"""Log ten runs with torch's SummaryWriter; the seed is in the name of the folder."""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

from tests.comparison.writers.training import Numbers, all_runs, folder, report

if __name__ == "__main__":
    numbers: Numbers = {}
    for precision, seed, curve in all_runs():
        with SummaryWriter(str(folder() / precision / f"seed-{seed}")) as writer:  # type: ignore[no-untyped-call]
            for step, loss in curve:
                writer.add_scalar("val/loss", loss, step)  # type: ignore[no-untyped-call]
                writer.add_scalar("train/epoch", step, step)  # type: ignore[no-untyped-call]
        numbers.setdefault(precision, {})[seed] = curve[-1][1]
    report(numbers)
