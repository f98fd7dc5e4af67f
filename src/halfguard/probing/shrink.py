"""Delta debugging on an ordered list: drop what is not needed, in few trials.

The list is sorted: items that are least likely needed are at its end. Pieces are dropped from there, twice as
large after each success, half as large after each failure. A single item whose removal fails is needed and
stays. A list in which every item is needed costs one trial per item, and these trials are also the proof.
One needed item among n costs about 2 log2(n) trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Passes = Callable[[Sequence[str]], bool]


def shrink(items: Sequence[str], passes: Passes, *, always: Sequence[str] = ()) -> list[str]:
    """Return the needed ones among ``items``, in their order; ``always`` is part of every trial.

    ``passes([*always, *items])`` must be true. If every superset of a passing list passes, the result passes
    and no single item can be dropped from it; ``drop_unneeded`` checks that.
    """
    rest, needed, size = list(items), list[str](), 1
    while rest:
        size = min(size, len(rest))
        if passes([*always, *rest[:-size], *needed]):
            del rest[-size:]
            size *= 2
        elif size > 1:
            size //= 2
        else:
            needed.insert(0, rest.pop())
    return needed


def drop_unneeded(items: Sequence[str], passes: Passes) -> list[str]:
    """Drop single items until no more can be dropped: each remaining item was tried without success."""
    kept = list(items)
    while True:
        spare = next((i for i in kept if passes([k for k in kept if k != i])), None)
        if spare is None:
            return kept
        kept.remove(spare)
