"""Split the casebook: about a third of the cases is held out, by a hash of the folder's name.

Whoever changes an instrument looks at the other two thirds only: the held-out third stays a fair measure.
"""

import hashlib


def held_out(name: str) -> bool:
    """Return whether the case in the folder `name` (such as "001_attention_scores") is held out."""
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0
