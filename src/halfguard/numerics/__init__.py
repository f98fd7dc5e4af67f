"""Pure functions that show what happens to numbers in 16 bits.

``explain`` is pure Python and needs no torch; the others work on tensors.
"""
