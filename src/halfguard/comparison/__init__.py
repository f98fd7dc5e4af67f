"""Compare runs that a tracker logged: read them, pair them by seed, and give the verdict of ``validation``.

Nothing here imports torch or a tracker's own package, and nothing is unpickled.
"""
