"""Compare 16-bit training with FP32: run both with the same seeds and give a verdict with its interval."""
