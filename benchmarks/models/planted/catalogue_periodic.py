"""The jobs that overflow in every n-th batch, in one module."""

from __future__ import annotations

from benchmarks.models.planted import periodic
from benchmarks.models.planted.base import Periodic

PERIODIC: tuple[Periodic, ...] = (
    Periodic(
        "loud_recordings",
        "bilinear pooling",
        "cross entropy",
        False,
        periodic.loud_recordings,
        "moments = x.transpose(1, 2) @ x",
        "Divide x by the root of the length, and compute the moments in float32.",
        every=2,
        module="pool",
    ),
    Periodic(
        "quickstart",
        "MLP",
        "MSE",
        False,
        periodic.quickstart,
        "return (1 + x * x).log()",
        "Square in float32, or use 2 * x.abs().log() for large x.",
        every=5,
        module="1",
    ),
    Periodic(
        "trade_network",
        "GNN",
        "cross entropy",
        False,
        periodic.trade_network,
        "return adjacency @ self.message(x)",
        "Use the mean over the neighbours.",
        every=10,
        module="sum",
    ),
    Periodic(
        "outlier_orders",
        "gated MLP",
        "MSE",
        False,
        periodic.outlier_orders,
        "return self.value(x) * self.gate(x)",
        "Squash the gate with a sigmoid, or multiply in float32.",
        every=25,
        module="gated",
    ),
    Periodic(
        "recording_spikes",
        "1-D CNN",
        "cross entropy",
        False,
        periodic.recording_spikes,
        "return (h * h).mean(-1)",
        "Square in float32.",
        every=50,
        module="energy",
    ),
)
