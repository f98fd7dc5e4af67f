"""Delta debugging on an ordered list: drop what is not needed, most doubtful first, in few trials.

The end of the list holds what is least likely needed. From there pieces are taken off, twice as large after
each success, half as large after each failure; a single element whose removal fails is needed, and stays.
A list in which everything is needed costs one trial an element, and each of these trials is at the same
time the proof. One needed element among n costs about 2 log2(n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Passes = Callable[[Sequence[str]], bool]


def shrink(items: Sequence[str], passes: Passes, *, always: Sequence[str] = ()) -> list[str]:
    """The needed ones among ``items``, in their order; ``always`` is in every trial.

    ``passes([*always, *items])`` is taken for granted. The result passes as well, and no single item can
    be dropped from it, if a superset of what passes always passes; ``irreducible`` checks that.
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


def irreducible(items: Sequence[str], passes: Passes) -> list[str]:
    """Drop single items until dropping any of them fails: every one that stays has been tried."""
    kept = list(items)
    while True:
        spare = next((i for i in kept if passes([k for k in kept if k != i])), None)
        if spare is None:
            return kept
        kept.remove(spare)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Modules that lie in no other of ``paths``: what is inside an island is FP32 already."""
    unique = list(dict.fromkeys(paths))
    return tuple(path for path in unique if not any(inside(path, other) for other in unique))


def inside(path: str, other: str) -> bool:
    """Whether a module lies in another one, and is not that one."""
    return path != other and (not other or path.startswith(f"{other}."))
