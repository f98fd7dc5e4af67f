"""Instruments that live in the program's own process, each put in as its documentation says."""
