"""One reader per file, found by its name.

A reader is a module with ``NAME``, the tracker's name; ``FILES``, the patterns of its file names;
``RANK``, which decides if several trackers logged the same runs (the lowest is read); and
``read(files)``, which yields a ``LoggedRun`` for each run in these files.
"""
