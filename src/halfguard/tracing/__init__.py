"""Sensors: ranges of a model's tensors while it trains, and the operation that made the first bad number."""

from halfguard.records.culprit import Culprit
from halfguard.tracing.auditing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.tracer import Tracer, trace

__all__ = ["Culprit", "Tracer", "audit", "find_first_nonfinite", "trace"]
