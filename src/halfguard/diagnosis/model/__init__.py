"""A model and its training setup: one observed forward pass, and one check per file."""
