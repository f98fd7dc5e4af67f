"""The limits that an answer tells."""

from __future__ import annotations

from halfguard.investigation.answering import _not_copied


def test_few_folders_are_named_and_many_are_counted() -> None:
    assert _not_copied(("/a", "/b")) == [
        "/a is too large to copy: what the script wrote there stays.",
        "/b is too large to copy: what the script wrote there stays.",
    ]
    (told,) = _not_copied(tuple(f"/data/{n}" for n in range(9_000)))
    assert "9000 folders in it, /data/0 among them" in told
