"""Replay a bad step: repeat it, find the operation where it began, and try possible cures."""
