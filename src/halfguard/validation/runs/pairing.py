"""Paired runs: the same initial weights, and the same batches in the same order.

Batches have their own random generators. Dropout draws different numbers in half precision. If data
augmentation used the same generator, its batches would differ between candidates, and the runs would not be
pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.step.random_state import capture_random_state, restore_random_state, seeded


def digest_of(tree: Any) -> str:
    """Return the SHA-256 of a nested structure; tensors count by dtype, shape and bits."""
    digest = hashlib.sha256()
    leaves, layout = tree_flatten(tree)
    digest.update(repr(layout).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            dense = leaf.detach().to_dense() if leaf.layout is not torch.strided else leaf.detach()
            flat = dense.cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


class SeededBatches:
    """Batches with their own random generators; computes a digest over all of them."""

    def __init__(self, batches: Iterable[Any], seed: int) -> None:
        self._batches = iter(batches)
        self._digest = hashlib.sha256()
        with seeded(seed):
            self._generators = capture_random_state()
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._swap()
            try:
                batch = next(self._batches)
            except StopIteration:
                self.ended = True
                return
            finally:
                self._swap()
            self._digest.update(digest_of(batch).encode())
            yield batch

    def _swap(self) -> None:
        others = capture_random_state()
        restore_random_state(self._generators)
        self._generators = others

    def digest(self) -> str | None:
        """Return the digest of all batches in order, or None if the run did not use all of them."""
        return self._digest.hexdigest() if self.ended else None


def raise_if_unpaired(runs: Sequence[RunResult], baseline: str) -> None:
    """Raise if a run and the baseline's run with the same seed are not a pair."""
    bases = {run.seed: run for run in runs if run.candidate == baseline}
    for run in runs:
        base = bases.get(run.seed)
        if base is None:
            continue
        for field, what in (("initial_weights", "weights"), ("batch_order", "batches")):
            mine, theirs = getattr(run, field), getattr(base, field)
            if None not in (mine, theirs) and mine != theirs:
                raise UsageError(
                    f"With seed {run.seed}, {run.candidate} and {baseline} have different {what} "
                    f"({mine[:12]} and {theirs[:12]}), so they are not a pair and cannot be compared.",
                    cure=(
                        "Make all randomness in the entry's function depend only on its seed, not on the "
                        "clock, an unseeded generator, or the order of files or sets."
                    ),
                )
