"""Parts of every training step, with or without a guard: random state, loss, nested batches, parameters."""
