"""What makes two runs a pair: the same initial weights, the same batches in the same order.

Batches get a random stream of their own. Dropout draws differently in half, and data augmentation that
shared its generator would then differ from candidate to candidate: the runs would no longer be pairs.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.workload import seeded


def digest_of(tree: Any) -> str:
    """SHA-256 of everything in a nested structure: tensors by dtype, shape and bits."""
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


class OwnStream:
    """Batches drawn from generators that nothing else touches; digests each as it passes."""

    def __init__(self, batches: Iterable[Any], seed: int) -> None:
        self._batches = iter(batches)
        self._digest = hashlib.sha256()
        with seeded(seed):
            self._generators = _states()
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
        others = _states()
        torch_state, python_state, numpy_state = self._generators
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy_state is not None:
            sys.modules["numpy"].random.set_state(numpy_state)
        self._generators = others

    def digest(self) -> str | None:
        """Of all batches in their order; None for a run that did not see them all."""
        return self._digest.hexdigest() if self.ended else None


def _states() -> tuple[Tensor, Any, Any]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def refuse_strangers(runs: Sequence[RunResult], baseline: str) -> None:
    """Raise if a run is not the pair of the baseline's with the same seed."""
    bases = {run.seed: run for run in runs if run.candidate == baseline}
    for run in runs:
        base = bases.get(run.seed)
        if base is None:
            continue
        for field, what in (("initial_weights", "weights"), ("batch_order", "batches")):
            mine, theirs = getattr(run, field), getattr(base, field)
            if None not in (mine, theirs) and mine != theirs:
                raise UsageError(
                    f"With seed {run.seed}, {run.candidate} and {baseline} began with other {what} "
                    f"({mine[:12]} and {theirs[:12]}): they are no pair, and are not compared.",
                    cure="Let the entry's function make everything random from its seed alone: no "
                    "clock, no generator of its own without a seed, no order of files or sets.",
                )
