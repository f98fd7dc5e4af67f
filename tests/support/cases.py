"""Many small cases in one test: all run, and each that fails is reported by its name."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Case = Callable[[object], AbstractContextManager[None]]


@contextmanager
def each_case() -> Iterator[Case]:
    """Yield what wraps a case of a loop; at the end, fail with every case that failed.

    A loop without a case fails as well: it would check nothing.
    """
    names: list[str] = []
    failed: list[str] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        names.append(str(name))
        try:
            yield
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - of whatever kind
            failed.append(f"{name}:\n{traceback.format_exc()}")

    yield case
    if failed:
        pytest.fail(f"{len(failed)} of {len(names)} cases failed\n\n" + "\n".join(failed))
    if not names:
        pytest.fail("there was no case")
