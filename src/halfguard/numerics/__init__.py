"""What a number becomes in 16 bits: formats, and the health of tensors.

``formats`` is pure Python and needs no torch; ``health`` and ``histogram`` work on tensors.
"""
