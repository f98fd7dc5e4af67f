"""The steps that are sampled: one in each interval, at a place that looks random, the same on all ranks.

A fixed distance may coincide with a period in the data, and then always meets the same kind of batch. The
place is computed from the interval's number, so no random state is used or changed.
"""

from __future__ import annotations

import zlib


def sampled_step(interval: int, every: int) -> int:
    """Return the sampled step of the n-th interval of ``every`` steps."""
    return interval * every + zlib.crc32(f"halfguard {interval}".encode()) % every


class Sampling:
    """Tells at the start of each step whether to sample it.

    A step that was not applied shows nothing of use, so the next one is sampled in its place.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.interval = -1  # that has had its sample

    def is_due(self, step: int) -> bool:
        """Return whether to sample this step."""
        interval = step // self.every
        return interval > self.interval and step >= sampled_step(interval, self.every)

    def done(self, step: int) -> None:
        """Note that a step was sampled, and is of use."""
        self.interval = step // self.every
