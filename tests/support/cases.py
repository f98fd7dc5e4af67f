"""Many small cases in one test: all run, and each that fails is reported by its name.

A test of pytest costs milliseconds, in every process that collects it; a case in a loop costs nothing.
"""

from __future__ import annotations

import functools
import inspect
import random
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

Case = Callable[[object], AbstractContextManager[None]]
Test = Callable[..., None]


@contextmanager
def each_case() -> Iterator[Case]:
    """Yield what wraps a case of a loop; at the end, fail with every case that failed.

    A loop without a case fails as well: it would check nothing.
    """
    names: list[object] = []
    failed: list[str] = []
    skipped: list[str] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        names.append(name)
        try:
            yield
        except pytest.skip.Exception as reason:
            skipped.append(f"{name}: {reason}")
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - of whatever kind
            failed.append(f"{name}:\n{traceback.format_exc()}")

    yield case
    if failed:
        text = f"{len(failed)} of {len(names)} cases failed\n\n" + "\n".join(failed)
        pytest.fail(text, pytrace=False)
    if not names:
        pytest.fail("there was no case")
    if len(skipped) == len(names):
        pytest.skip("; ".join(skipped))


def each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each of these values, as ``parametrize`` does, but as one test with a loop.

    Fixtures are made once. Only random numbers begin anew for each case, and ``tmp_path`` is a folder of
    its own.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_named(value, single=len(keys) == 1) for value in values]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            folder = fixtures.get("tmp_path")
            torch_state, python_state = torch.get_rng_state(), random.getstate()
            with each_case() as case:
                for number, (name, given) in enumerate(cases):
                    torch.set_rng_state(torch_state)
                    random.setstate(python_state)
                    if folder is not None:
                        fixtures["tmp_path"] = folder / str(number)
                        fixtures["tmp_path"].mkdir()
                    with case(name):
                        test(**fixtures, **dict(zip(keys, given, strict=True)))

        others = [p for p in signature.parameters.values() if p.name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate


def _named(value: Any, *, single: bool) -> tuple[str, tuple[Any, ...]]:
    """Return a case's name and its values; a ``pytest.param`` may give the name."""
    if hasattr(value, "marks"):
        assert not value.marks, "a case has no marks of its own"
        return str(value.id or value.values), value.values
    return str(value), (value,) if single else tuple(value)
