"""Compare runs that a tracker logged: read them, pair them by seed, and give the verdict of ``validation``.

Nothing here imports torch, and nothing is unpickled. A tracker's own package is imported when one of its logs
is read.
"""
