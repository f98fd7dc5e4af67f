"""Sensors: ranges of a model's tensors while it trains, and the operation that first returned NaN or Inf."""
