"""What several tests need: counters of operations, plain reference loops."""
