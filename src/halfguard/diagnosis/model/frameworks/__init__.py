"""Reads training setups, one framework per file. Works on the user's objects, so it needs no framework."""
