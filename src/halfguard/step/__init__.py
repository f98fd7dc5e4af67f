"""What every training step has, whoever runs it: random state, a loss, nested batches, parameters by name."""
