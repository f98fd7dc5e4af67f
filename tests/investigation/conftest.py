"""The script of tests of patches, and a bus whose sensors are on torch for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halfguard.investigation.bus import HookBus
from tests.repairs.conftest import script

__all__ = ["bus", "script"]


@pytest.fixture
def bus() -> Iterator[HookBus]:
    made = HookBus()
    made.install()
    yield made
    made.remove()
