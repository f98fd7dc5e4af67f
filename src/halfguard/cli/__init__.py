"""The command line: one file per command, imported only when the command is used."""

from halfguard.cli.app import main

__all__ = ["main"]
