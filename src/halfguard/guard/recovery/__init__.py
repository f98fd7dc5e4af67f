"""Snapshots to return to, and the remedies to try after returning."""
