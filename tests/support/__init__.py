"""Shared by several tests: counters of operations, models, plain reference loops, groups of ranks."""
