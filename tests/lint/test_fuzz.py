"""A small part of what ``scripts/soak lint`` runs."""

from __future__ import annotations

import time

import pytest

from halfguard.lint.engine import lint_bytes
from halfguard.lint.registry import all_rules
from tests.lint.fuzz import LIMIT, fuzz
from tests.lint.helper import FIXTURES, PREVIEW


@pytest.mark.parametrize(
    ("fixture", "times"),
    [
        ("HG210/good.py", 540),
        ("HG107/bad.py", 84),
        ("HG309/bad_forms.py", 180),
        ("HG201/good_forbidden_accelerate.py", 144),
        ("HG302/bad.py", 144),
    ],
)
def test_the_time_grows_with_the_length_of_a_file(fixture: str, times: int) -> None:
    data = (FIXTURES / fixture).read_bytes() * times
    start = time.process_time()
    lint_bytes(data, "train.py", PREVIEW, all_rules())
    assert time.process_time() - start < LIMIT


@pytest.mark.slow
def test_nothing_raises_and_nothing_hangs() -> None:
    assert fuzz(500).findings > 100
