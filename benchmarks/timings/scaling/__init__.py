"""Costs as functions of size: each module measures one axis at given points, and returns tables."""
