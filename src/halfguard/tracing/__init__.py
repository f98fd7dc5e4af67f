"""Sensors: what a model's tensors look like while it trains, and which operation broke them."""

from halfguard.records.culprit import Culprit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.tracer import Tracer, trace

__all__ = ["Culprit", "Tracer", "find_first_nonfinite", "trace"]
