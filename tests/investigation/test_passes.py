"""The command of a script as text."""

from __future__ import annotations

import shlex

from halfguard.investigation.passes import Target


def test_a_command_as_text_keeps_its_words() -> None:
    target = Target(name="train.py", arguments=("--header", "a b", "--lr", "1"))
    assert str(target) == "train.py --header 'a b' --lr 1"
    assert shlex.split(str(Target(name="a.b", is_module=True))) == ["-m", "a.b"]
