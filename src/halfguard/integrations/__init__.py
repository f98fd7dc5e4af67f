"""Adapters: the guard inside frameworks that own the training loop, one framework per file."""
