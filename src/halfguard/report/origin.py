"""The origin of a page: when it was made, with which versions, and by which command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from halfguard.records.machine import installed_version
from halfguard.report.command_line import current_command


@dataclass(frozen=True)
class Origin:
    """Date, versions and command; ``torch`` and ``command`` are empty if they are not known."""

    made: str
    halfguard: str
    torch: str
    command: str

    def versions(self) -> list[str]:
        """Return the date and the versions, for one line of text."""
        torch = [f"torch {self.torch}"] if self.torch else []
        return [self.made, f"halfguard {self.halfguard}", *torch]


def current_origin(torch: str = "", command: str | None = None) -> Origin:
    """Return the origin of a page that is made now.

    ``torch`` is the version that the shown run had; by default it is the installed one. ``command`` is by
    default that of this process.
    """
    return Origin(
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        halfguard=installed_version("halfguard") or "from a source tree",
        torch=torch or installed_version("torch"),
        command=current_command() if command is None else command,
    )
