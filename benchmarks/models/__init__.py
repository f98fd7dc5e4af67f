"""Models that fail in half precision on purpose, and healthy ones: what studies and tests train."""
