"""A step that raises at the same point on two ranks leaves no trace on either, and nobody hangs.

A point of the step is reached by all ranks or by none, as for a batch that every rank rejects. If one rank
raises alone, the others wait for it in a collective, as without the guard.
"""

from __future__ import annotations

import pytest

from tests.guard.test_transaction import try_on_rank
from tests.support.pairs import parametrize_pairs
from tests.support.ranks import Group

pytestmark = pytest.mark.slow


@parametrize_pairs(where=[("operation", 37), ("call", 17)], accumulate=[1, 4], retry=[False, True])
def test_an_exception_on_all_ranks_leaves_no_trace(
    ranks: Group, accumulate: int, retry: bool, where: tuple[str, int]
) -> None:
    for found in ranks(2).run(try_on_rank, "batchnorm", accumulate, retry, *where):
        assert found["never seen"] > 0
        assert set(found) <= {"never seen", "applied", "refused"}, found
