"""A step that raises at the same point on two ranks leaves no trace on either, and nobody hangs.

A point of the step is reached by all ranks or by none, as for a batch that every rank rejects. If one rank
raises alone, the others wait for it in a collective, as without the guard.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.guard.test_transaction import try_on_rank
from tests.support.ranks import Ranks


@pytest.mark.slow
@pytest.mark.parametrize("retry", [False, True], ids=["skip", "retry"])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(("point", "every"), [("operation", 37), ("call", 17)])
def test_an_exception_on_all_ranks_leaves_no_trace(
    ranks: Callable[[int], Ranks], accumulate: int, retry: bool, point: str, every: int
) -> None:
    for found in ranks(2).run(try_on_rank, "batchnorm", accumulate, retry, point, every):
        assert found["never seen"] > 0
        assert set(found) <= {"never seen", "applied", "refused"}, found
