"""Time and memory of a step in each precision: measured, explained, and compared with a budget."""

from halfguard.diagnosis.cost.measuring import measure_cost

__all__ = ["measure_cost"]
