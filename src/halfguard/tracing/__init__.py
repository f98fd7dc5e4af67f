"""Sensors: ranges of a model's tensors while it trains, and the operation that made the first bad number."""
