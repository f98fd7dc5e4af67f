"""Source rules: find what breaks in half before it runs, and fix it. Runs without torch."""
