"""A loop in one test: all cases run, and the test names each that failed."""

from __future__ import annotations

import pytest

from tests.support.cases import each_case


def run(names: tuple[str, ...], ran: list[str]) -> None:
    with each_case() as case:
        for name in names:
            with case(name):
                ran.append(name)
                assert name != "wrong"
                if name == "silent":
                    with pytest.raises(ValueError, match="never"):
                        pass
                if name == "broken":
                    raise KeyError(name)


def test_every_case_runs_and_each_failure_is_named() -> None:
    names, ran = ("good", "wrong", "silent", "broken"), list[str]()
    with pytest.raises(pytest.fail.Exception) as caught:
        run(names, ran)
    assert ran == list(names)
    message = str(caught.value)
    assert "3 of 4 cases failed" in message
    assert all(f"{name}:\n" in message for name in names[1:])
    assert "good:" not in message


def test_a_loop_without_a_case_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="no case"):
        run((), [])
