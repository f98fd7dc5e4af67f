"""The micro-batches of one step, with everything that is needed to repeat them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.guard.batch_checks import describe_batch
from halfguard.guard.look import ComparedTensors
from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.holders import is_as, restore_changed, save_all, text_of_name
from halfguard.step.loss import LossFunction, scalar_loss
from halfguard.step.nested import PlainValues, batch_leaves, named_batch_leaves
from halfguard.step.random_state import Generator, restore_random_state, set_generator_state
from halfguard.step.reach import reach

_COPIED_BYTES = 2**29  # of a batch


class BatchCopy:
    """What a batch held before its forward pass, for loss functions that change theirs.

    The batch itself is put back, not replaced: it may be a view of data that later batches share.
    """

    def __init__(self, batch: Any, copied_anyway: Set[int] = frozenset()) -> None:
        reached = reach([("batch", batch)])
        self.is_needed = True  # until the batch was seen to be unchanged
        self._batch = batch
        self._copied_anyway = copied_anyway  # identities of containers
        self._saved = save_all(reached.holders)
        self._tensors = ComparedTensors(reached.tensors, room=_COPIED_BYTES)

    @property
    def is_complete(self) -> bool:
        """True if all of it was copied; a batch may hold a whole data set."""
        return self._tensors.is_complete

    def has_changed(self) -> bool:
        """Return whether more than the containers changed that are copied anyway. This reads the device."""
        written = bool(self._tensors.differing())
        changed = [holder.target for holder, before in self._saved if not is_as(holder, before)]
        self.is_needed = written or bool(changed)
        return written or any(id(target) not in self._copied_anyway for target in changed)

    def lost(self) -> list[str]:
        """Return the names of parts that changed and cannot be put back: iterators."""
        parts = ((h, before) for h, before in self._saved if not h.restorable)
        return [text_of_name(holder.name) for holder, before in parts if not is_as(holder, before)]

    def restore(self) -> None:
        """Put the batch back."""
        restore_changed(self._saved)
        self._tensors.restore()

    def now(self) -> BatchCopy:
        """Return a copy of the batch as it is now."""
        return BatchCopy(self._batch, self._copied_anyway)


@dataclass(frozen=True)
class MicroBatch:
    """One batch of a step; ``loss_fn`` and ``rng`` are set only if its forward pass can be repeated."""

    batch: Any
    about: Any = None
    loss_fn: LossFunction | None = None
    rng: dict[str, Any] | None = None
    own_generators: tuple[tuple[Generator, Any], ...] = ()  # of the user, with their states
    versions: tuple[tuple[Tensor, int], ...] = ()  # tensors of the batch as they were given
    given: BatchCopy | None = None  # if the loss function may change more than containers

    def restore(self) -> None:
        """Put back what the forward pass began with: random generators, and the batch if it was copied."""
        self.restore_generators()
        if self.given is not None:
            self.given.restore()

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """Run the block with the batch as it was given; afterwards it is as it is now."""
        if self.given is None:
            yield
            return
        now = self.given.now()
        self.given.restore()
        try:
            yield
        finally:
            now.restore()

    def loss_of(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a copy of ``batch``: the loss function may take something out of it."""
        assert self.loss_fn is not None  # noqa: S101 - only steps that can be repeated get here
        return trainable_loss(self.loss_fn(model, copy_of(batch)))

    def restore_generators(self) -> None:
        """Set all random generators to their states before the forward pass, to draw the same numbers."""
        if self.rng is not None:
            restore_random_state(self.rng)
        for generator, state in self.own_generators:
            set_generator_state(generator, state)


@dataclass
class StepBatches:
    """The micro-batches and the summed loss of a step that is not decided yet."""

    loss: Tensor | None = None  # summed over micro-batches, each divided by their number
    micro_batches: list[MicroBatch] = field(default_factory=list)
    gradients_held_back: bool = False  # not reduced over ranks until the last micro-batch
    reduced_each: bool = False  # a host lets FSDP2 reduce the gradients of each micro-batch
    finite_again: bool = False  # when they were run twice as they had been, on all ranks
    unrepeatable: bool = False  # they change something that nobody can put back

    def add(self, part: Tensor, micro_batch: MicroBatch) -> None:
        """Add one micro-batch with its part of the loss, detached from its graph."""
        self.loss = part if self.loss is None else self.loss + part
        self.micro_batches.append(micro_batch)

    def forget_unneeded_copies(self) -> None:
        """Drop the copies of batches that the forward pass was seen to leave as they were."""
        self.micro_batches = [
            micro
            if micro.given is None or micro.given.is_needed
            else replace(micro, given=None, versions=tensor_versions(micro.batch))
            for micro in self.micro_batches
        ]

    @property
    def repeatable(self) -> bool:
        """True if the guard knows how to compute every loss again."""
        return all(m.loss_fn is not None and m.rng is not None for m in self.micro_batches)

    @property
    def changed_in_place(self) -> bool:
        """True if a loss function has written to its batch, or to something else for good: no repeat."""
        if self.unrepeatable:
            return True
        return any(t._version != version for m in self.micro_batches for t, version in m.versions)

    @property
    def local_loss(self) -> float:
        """The loss of this rank alone. This reads the device."""
        return float("nan") if self.loss is None else self.loss.item()

    def descriptions(self, *, contents: bool = False, about: bool = False) -> tuple[str, ...]:
        """Return a line per batch; with its strings and numbers, and with the user's description of it."""
        return tuple(
            describe_batch(micro.batch, micro.about if about else None, contents=contents)
            for micro in self.micro_batches
        )


def copy_containers(batch: Any, copied: dict[int, Any] | None = None) -> Any:
    """Return the batch with its own dicts and lists, so that ``batch.pop(...)`` changes only the other.

    ``copied`` gets the containers that were copied, by identity.
    """
    copied = {} if copied is None else copied
    if isinstance(batch, Mapping) and hasattr(batch, "__setitem__"):
        copied[id(batch)] = batch
        own: Any = copy.copy(batch)
        for key, value in batch.items():
            own[key] = copy_containers(value, copied)
        return own
    if isinstance(batch, tuple):
        parts = [copy_containers(item, copied) for item in batch]
        if all(part is item for part, item in zip(parts, batch, strict=True)):
            return batch
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if type(batch) is not list:
        return batch
    copied[id(batch)] = batch
    return [copy_containers(item, copied) for item in batch]


def copy_of(batch: Any) -> Any:
    """Return a copy of a batch that shares its tensors, other than those that collect gradients."""
    leaves = (leaf for _, leaf in named_batch_leaves(batch))
    shared = {id(t): t for t in leaves if isinstance(t, Tensor) and not t.requires_grad}
    return copy.deepcopy(batch, shared)


def loss_in_fp32(micro: MicroBatch, loss_of: Callable[[Any], Tensor]) -> Tensor:
    """Return the loss of a micro-batch for a pass in FP32, whose layers reject 16-bit tensors.

    The batch as it was given comes first: the loss function may cast by itself, or have a half network beside
    the model. Where that raises, its 16-bit tensors are float32.
    """
    again = copy_containers(micro.batch)  # the first try may take something out of it
    try:
        return loss_of(micro.batch)
    except RuntimeError:
        micro.restore()
        wide = batch_in_fp32(again)
        if wide is again:
            raise
    return loss_of(wide)


def batch_in_fp32(batch: Any) -> Any:
    """Return a copy of the batch with its 16-bit tensors in float32; all else in it stays the same object.

    A batch without 16-bit tensors is returned as it is.
    """
    leaves = [leaf for _, leaf in named_batch_leaves(batch, max_nodes=1_000_000)]
    wide = {id(t): t.float() for t in leaves if isinstance(t, Tensor) and t.dtype in HALF_DTYPES}
    if not wide:
        return batch
    # What deepcopy finds in its memo takes the place of the original, in any kind of object.
    same = {id(leaf): leaf for leaf in leaves if type(leaf) is not PlainValues}
    try:
        return copy.deepcopy(batch, same | wide)
    except Exception:  # noqa: BLE001 - an object that cannot be copied
        return batch


def tensor_versions(batch: Any) -> tuple[tuple[Tensor, int], ...]:
    """Return the tensors of a batch with their version counters."""
    tensors = (leaf for leaf in batch_leaves(batch) if isinstance(leaf, Tensor))
    return tuple((t, t._version) for t in tensors if not t.is_inference())


def trainable_loss(result: Any) -> Tensor:
    """Return the loss of a loss function's result; raise a UsageError if it has no graph."""
    loss = scalar_loss(result)
    if not loss.requires_grad:
        raise UsageError(
            "The loss has no autograd graph, so backward() would compute no gradients.",
            cure="Check whether it was rebuilt from a number (torch.tensor(loss.item())), detached, or "
            "computed under torch.no_grad().",
        )
    return loss
