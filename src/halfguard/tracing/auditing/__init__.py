"""Swallowed overflow: find operations that left the range of half, and judge whether that mattered."""
