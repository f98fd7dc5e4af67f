"""The limits that an answer tells."""

from __future__ import annotations

import pytest

from halfguard.investigation.answering import answer_good_run
from halfguard.investigation.curing import Proven
from halfguard.investigation.passes import PassResult, Target


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
