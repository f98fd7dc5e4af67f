"""Count the collectives and host syncs of each step, between the callbacks of a framework."""

from __future__ import annotations

from contextlib import ExitStack

from tests.dist.count_collectives import Calls, Collectives
from tests.support.counting import OpCounter

WARM_UP = 4  # steps: FSDP2 starts, and the guard looks at what they change


class StepCounts:
    """Counts from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.steps: list[tuple[Calls, int]] = []  # collectives with their bytes; host syncs

    def begin(self) -> None:
        self._sent = self._stack.enter_context(Collectives())
        self._operations = self._stack.enter_context(OpCounter())

    def end(self) -> None:
        self._stack.close()
        self.steps.append((self._sent.seen, self._operations.host_syncs))


def assert_one_small_collective(
    stock: list[tuple[Calls, int]], guarded: list[tuple[Calls, int]], host_syncs: int = 0
) -> None:
    """Compare steps after the first ones: one collective of at most 64 bytes more, and host syncs."""
    pairs = list(zip(stock, guarded, strict=True))[WARM_UP:]
    assert pairs
    for (without, syncs_without), (with_us, syncs_with_us) in pairs:
        extra = list(with_us)
        for call in without:
            extra.remove(call)  # everything that the framework sends is still sent, once
        assert len(extra) == 1
        assert extra[0][1] <= 64
        assert syncs_with_us == syncs_without + host_syncs
