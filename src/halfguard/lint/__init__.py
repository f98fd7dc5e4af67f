"""Lint rules: find and fix code and settings that fail in float16 training. Runs without torch."""
