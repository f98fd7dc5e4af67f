"""Names that were found, for an error about a name that was not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 30


def list_names(names: Iterable[str]) -> str:
    """Return the names in order, or the first of them."""
    found = sorted(set(names))
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{', '.join(found[:_LISTED])}{more}" if found else "none"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the closest names, or an empty string."""
    known = sorted(set(names))
    last = name.replace(".", "/").replace("_", "/").split("/")[-1]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close = close or [one for one in known if last and last in one][:3]
    return f" Did you mean {' or '.join(close)}?" if close else ""
