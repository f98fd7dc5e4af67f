"""Do what may fail on one rank alone, so that every rank hears of it.

A rank that stops where the others go on leaves them waiting for it in their next collective, for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from halfguard.dist.ranks import all_agree, everybodys_words


def attempt(work: Callable[[], Any], device: torch.device) -> tuple[Any, list[str]]:
    """Work on every rank: what it gave this one, and what went wrong on any of them. This waits.

    What went wrong alike on many is told once, by the first of them.
    """
    result, complaint = None, ""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        complaint = str(error) or repr(error)
    if all_agree(not complaint, device):
        return result, []
    words = everybodys_words(complaint)
    return result, [f"rank {words.index(word)}: {word}" for word in dict.fromkeys(words) if word]
