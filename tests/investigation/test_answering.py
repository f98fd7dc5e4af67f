"""The limits that an answer tells."""

from __future__ import annotations

import pytest

from halfguard.investigation.answering import _not_copied, answer_good_run
from halfguard.investigation.curing import Proven
from halfguard.investigation.passes import PassResult, Target


def test_few_folders_are_named_and_many_are_counted() -> None:
    assert _not_copied(("/a", "/b")) == [
        "/a is too large to copy: what the script wrote there stays.",
        "/b is too large to copy: what the script wrote there stays.",
    ]
    (told,) = _not_copied(tuple(f"/data/{n}" for n in range(9_000)))
    assert "9000 folders in it, /data/0 among them" in told


@pytest.mark.parametrize(
    ("first", "audit", "told"),
    [
        ("", PassResult(ended="steps"), ""),
        ("", PassResult(ended="crashed", error="RuntimeError: sparse"), "RuntimeError: sparse"),
        ("", PassResult(ended="died"), "its process died"),
        ("", PassResult(ended="interrupted"), ""),
        ("KeyError: 'x'", PassResult(ended="crashed", error="KeyError: 'x'"), ""),
    ],
)
def test_an_audit_that_fails_is_told(first: str, audit: PassResult, told: str) -> None:
    answer = answer_good_run(
        Target(name="train.py"),
        PassResult(ended="finished", backward=9, error=first),
        audit,
        (),
        proven=Proven(),
        log="",
        shared=(),
    )
    assert any("The audit of a few steps failed" in note for note in answer.notes) is bool(told)
    assert told in " ".join(answer.notes)
