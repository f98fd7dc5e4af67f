"""The planted material is what it says: faults fail in FP16 only, drifts overflow where they say."""

from __future__ import annotations

import pytest

from tests.support.planted import FAULTS, PERIODIC
from tests.support.planted.base import Fault, source_of

BY_NAME = [pytest.param(fault, id=fault.name) for fault in (*FAULTS, *PERIODIC)]


@pytest.mark.parametrize("fault", BY_NAME)
def test_culprit_line_is_unique_in_its_file(fault: Fault) -> None:
    assert source_of(fault.job).read_text().count(fault.line) == 1
    assert fault.line_number > 0
