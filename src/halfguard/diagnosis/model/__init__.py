"""A model and what trains it: one watched forward pass, and one check a file."""
