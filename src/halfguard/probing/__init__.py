"""Checks before training: the range of every layer, what fails in 16 bits, and the plan that prevents it."""
