"""The matrix: loop shapes by optimizers by faults. A cell is bitwise its reference, or refused."""
