"""Log ten runs with wandb, offline, all in one folder; precision and seed are in the config."""

from __future__ import annotations

import wandb

from tests.comparison.writers.training import Numbers, all_runs, folder, report

if __name__ == "__main__":
    folder().mkdir(exist_ok=True)
    numbers: Numbers = {}
    for precision, seed, curve in all_runs():
        run = wandb.init(
            project="compare",
            group=precision,
            name=f"{precision} number {seed}",
            config={"precision": precision, "trainer": {"seed": seed}},
            dir=str(folder()),
            mode="offline",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        for step, loss in curve:
            run.log({"val": {"loss": loss}, "train/epoch": step, "note": "text"}, step=step)
        run.finish()
        numbers.setdefault(precision, {})[seed] = curve[-1][1]
    report(numbers)
