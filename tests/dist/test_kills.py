"""A rank is killed and the job restarted; ``scripts/soak kills 50`` does it more often."""

from __future__ import annotations

import pytest

from tests.dist import kills

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)
def test_a_restarted_job_ends_bitwise_where_the_undisturbed_one_does() -> None:
    kills.main(4, seed=5)
