"""Train under a guard whose numbers Prometheus may scrape, one batch for each line on standard input.

The port is printed first. A line ``bad`` is a NaN batch, ``good`` a usual one; the answer is the action.
"""

from __future__ import annotations

import sys

import torch
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

import halfguard as hg
from halfguard.integrations.telemetry import observe
from tests.integrations.tracked_run import loss_fn


def main() -> None:
    set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    server, _ = start_http_server(port=0, addr="127.0.0.1")
    model = torch.nn.Linear(4, 1)
    guard = hg.Guard(model, torch.optim.AdamW(model.parameters()), {"scale": {"init": 1024.0}})
    observe(guard)
    print(server.server_port, flush=True)
    for line in sys.stdin:
        batch = torch.full((8, 4), torch.nan) if line.strip() == "bad" else torch.randn(8, 4)
        print(guard.step(loss_fn, batch).action, flush=True)


if __name__ == "__main__":
    main()
