"""Repairs of a user's source, one per file: those of ``lint --fix``, ``why`` and ``replay``."""
