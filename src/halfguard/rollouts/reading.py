"""Recorded rollouts: a JSONL file, one completion a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfguard.errors import UsageError

_FORM = (
    'A line is {"prompt_ids": [...], "completion_ids": [...], "rollout_logprobs": [...]}, and may '
    'contain "trainer_logprobs" of the same length.'
)


@dataclass(frozen=True)
class Rollout:
    """One completion: its token ids, and the log-probability of each token when it was drawn."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    trainer: tuple[float, ...] | None = None


def read_rollouts(path: str | os.PathLike[str], most: int | None = None) -> list[Rollout]:
    """Read the rollouts of a file, at most the first ``most``."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    rows = [_parse(line, f"{path}:{number}") for number, line in numbered[:most]]
    if not rows:
        raise UsageError(f"{path} contains no rollouts.", cure=_FORM)
    return rows


def _parse(line: str, place: str) -> Rollout:
    try:
        row: Any = json.loads(line)
        prompt, completion = (
            tuple(map(int, row[f"{name}_ids"])) for name in ("prompt", "completion")
        )
        recorded = [row["rollout_logprobs"], row.get("trainer_logprobs")]
        rollout, trainer = (None if one is None else tuple(map(float, one)) for one in recorded)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{place} is not a rollout: {error!r}.", cure=_FORM) from error
    if not prompt or not completion or rollout is None:
        raise UsageError(
            f"{place}: a prompt, a completion and log-probabilities are required.", cure=_FORM
        )
    for values in (rollout, trainer or rollout):
        _check(values, completion, place)
    return Rollout(prompt, completion, rollout, trainer)


def _check(values: Sequence[float], completion: Sequence[int], place: str) -> None:
    if len(values) != len(completion):
        raise UsageError(
            f"{place}: {len(values)} log-probabilities for {len(completion)} tokens.", cure=_FORM
        )
    if not all(math.isfinite(one) and one <= 1e-3 for one in values):
        raise UsageError(
            f"{place}: a log-probability is positive or not finite.",
            cure="Export the natural logarithms of the probabilities of the sampled tokens.",
        )
