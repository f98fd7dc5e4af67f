"""Jobs of others that overflow in every n-th batch; ``scripts/soak heal`` trains them for longer."""

from __future__ import annotations

import pytest
from benchmarks.models.planted import PERIODIC
from benchmarks.models.planted.base import Periodic

from tests.guard.healing.soak import RETRY, train


@pytest.mark.slow
@pytest.mark.parametrize("planted", PERIODIC, ids=lambda planted: planted.name)
def test_the_module_at_fault_is_healed(planted: Periodic) -> None:
    run = train(planted.job, 0, RETRY | {"heal": {}}, 4 * planted.every + 2)
    assert run.modules == (planted.module,)
    assert len(run.islands) == 1
    assert run.failed_forward == 3
    assert run.failed_after == 0
