"""Run a model in 16 bits: autocast modes, FP32 master weights, islands, half checkpoints."""
