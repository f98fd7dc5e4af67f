"""Random faults on real ranks; ``scripts/soak ranks 1000`` runs more of the same."""

from __future__ import annotations

import pytest

from tests.dist import faults

pytestmark = pytest.mark.slow


def test_every_rank_takes_the_same_action() -> None:
    taken = faults.main(60, seed=20, show=False)
    seen = {what.split(":")[0] for what in taken}
    assert seen == {"skip", "retry_fp32", "roll_back", "halted"}  # the sample contains each of them
