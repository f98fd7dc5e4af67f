"""Groups of real processes, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.ranks import Ranks


@pytest.fixture(
    scope="module"
)  # every test leaves gloo's threads behind, which take time as they wait
def _groups() -> Iterator[dict[int, Ranks]]:
    groups: dict[int, Ranks] = {}
    yield groups
    for group in groups.values():
        group.close()


@pytest.fixture
def ranks(_groups: dict[int, Ranks]) -> Callable[[int], Ranks]:
    """Return a group of this many processes; a new one if the last one was killed."""

    def group(count: int) -> Ranks:
        if count not in _groups or not _groups[count].alive:
            _groups[count] = Ranks(count)
        return _groups[count]

    return group
