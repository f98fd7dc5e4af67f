"""The command line: one file a command, each imported only when it is asked for."""

from halfguard.cli.app import main

__all__ = ["main"]
