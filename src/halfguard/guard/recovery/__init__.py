"""Snapshots to roll back to, and the remedies to try after a rollback."""
