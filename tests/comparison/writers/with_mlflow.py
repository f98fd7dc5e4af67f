"""Log ten runs with MLflow to SQLite, one experiment per precision; the seed is a parameter."""

from __future__ import annotations

import mlflow

from tests.comparison.writers.training import Numbers, all_runs, folder, report

if __name__ == "__main__":
    folder().mkdir(exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder() / 'mlflow.db'}")
    numbers: Numbers = {}
    for precision, seed, curve in all_runs():
        mlflow.set_experiment(precision)
        with mlflow.start_run():
            mlflow.log_params({"seed": seed, "lr": 0.1})
            for step, loss in curve:
                mlflow.log_metrics({"val_loss": loss}, step=step)
        numbers.setdefault(precision, {})[seed] = curve[-1][1]
    report(numbers)
