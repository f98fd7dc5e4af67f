"""The seed of a logged run: from its settings, else from its name, else from the name of its folder.

A setting whose name is one of ``KEYS`` counts, at any depth; of several, the one that is nested least. In a
name, the word "seed" followed by a number counts: fp16-seed3, seed_3, seed=3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from halfguard.comparison.logged_run import LoggedRun
from halfguard.comparison.suggestions import did_you_mean, list_names
from halfguard.errors import UsageError

KEYS = ("seed", "random_seed", "manual_seed", "rng_seed", "seed_everything", "random_state")
_IN_NAME = re.compile(r"seed[-_=. ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Seed:
    """A seed, and where it was found."""

    value: int
    source: str


def find_seed(run: LoggedRun, root: str, key: str | None = None) -> Seed | None:
    """Return the seed of a run found under ``root``; with ``key``, only from the setting of that name."""
    settings = run.settings
    if key is not None:
        number = _integer(settings.get(key, ""))
        return None if number is None else Seed(number, f"setting {key}")
    named = [name for name in settings if name.rpartition(".")[2].lower() in KEYS]
    for name in sorted(named, key=lambda name: (name.count("."), KEYS.index(_last(name)))):
        number = _integer(settings[name])
        if number is not None:
            return Seed(number, f"setting {name}")
    if found := _IN_NAME.search(run.name):
        return Seed(int(found[1]), "name of the run")
    for part in reversed(_parts_below(run.place, root)):
        if found := _IN_NAME.search(part):
            return Seed(int(found[1]), "name of the folder")
    return None


def require_key(key: str, runs: Sequence[LoggedRun]) -> None:
    """Raise if no run has the setting ``key``."""
    known = {name for run in runs for name in run.settings}
    if key not in known:
        raise UsageError(
            f"--seed-key: no run has the setting {key!r}.{did_you_mean(key, known)}",
            cure=f"Settings that were found: {list_names(known)}.",
        )


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else None


def _parts_below(place: str, root: str) -> tuple[str, ...]:
    """Return the parts of a path below ``root``, which may be a pattern, and the last of ``root`` itself."""
    parts = PurePath(place).parts
    return parts[max(min(len(PurePath(root).parts), len(parts)) - 1, 0) :]
