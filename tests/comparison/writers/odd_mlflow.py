"""Log runs with MLflow that ended in different ways, with values that are not finite."""

from __future__ import annotations

import math

from mlflow import MlflowClient

from tests.comparison.writers.training import folder

if __name__ == "__main__":
    client = MlflowClient(f"sqlite:///{folder() / 'mlflow.db'}")
    experiment = client.create_experiment("fp16")
    for start, (name, status) in enumerate(
        (("first", "FINISHED"), ("second", "FAILED"), ("third", "RUNNING"), ("gone", "FINISHED"))
    ):
        run = client.create_run(experiment, run_name=name, start_time=1000 + start).info.run_id
        client.log_param(run, "seed", "3")
        client.set_tag(run, "team", "x")
        for step, value in ((20, 0.5), (10, math.nan), (5, math.inf)):
            client.log_metric(run, "loss", value, step=step)
        if status != "RUNNING":
            client.set_terminated(run, status, end_time=3500)
        if name == "gone":
            client.delete_run(run)
