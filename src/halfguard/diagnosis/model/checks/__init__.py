"""One check per file: ``check(setup)`` yields findings. Every ``hd*.py`` in this folder is a check."""
