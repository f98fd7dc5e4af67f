"""Checks of a batch: is it finite, does it have labels, and how is it described in the journal.

A batch may hold anything, so no check raises: a value that cannot be checked counts as good. NumPy is used
only if the program has imported it.
"""

from __future__ import annotations

import cmath
import math
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from halfguard.formats import FP16, dtype_name
from halfguard.numerics.finite import all_finite, strided_values
from halfguard.step.nested import PlainValues, named_batch_leaves, text_of

# Find a row of an attention mask in which every position is masked: a softmax over it is 0/0.
#
# Only masks whose meaning is known are judged: an additive mask is -inf (or near it) where it
# masks, ``attention_mask`` is 0 there, and ``key_padding_mask`` is True. Other masks of ones and
# zeros may mean either.


@torch.no_grad()
def fully_masked(batch: Any) -> str:
    """Return the name of a mask of the batch with a fully masked row, or "". This reads the device."""
    for names, leaf in named_batch_leaves(batch):
        name = names[-1] if names else ""
        if isinstance(leaf, Tensor) and name.lower().endswith("mask"):
            try:
                found = _has_masked_row(leaf, name.lower())
            except Exception:  # noqa: BLE001, S112 - a layout or dtype that cannot be compared
                continue
            if found:
                return name
    return ""


def _has_masked_row(mask: Tensor, name: str) -> bool:
    if mask.dim() < 2 or not mask.numel():
        return False
    if mask.is_floating_point() and bool((mask < 0).any()):  # additive
        return bool((mask <= -FP16.largest).all(-1).any())
    if mask.dim() > 2:
        return False  # rows of padding are fully masked there, and models leave them out
    used = mask != 0
    if name.endswith("key_padding_mask"):
        return not mask.is_floating_point() and bool(used.all(-1).any())
    # An additive mask of zeros masks nothing, so a mask without any 1 says nothing.
    return name.endswith("attention_mask") and bool(used.any()) and not bool(used.any(-1).all())


_DESCRIBED = 12  # entries of a batch that a description shows
_LENGTH = 120  # characters of an entry
_SEARCHED = 500  # nodes of a batch that are searched for them
_PART = 2**24  # elements of an array that are checked at a time, to save memory
_MAX_MAPPED_BYTES = 2**26  # a larger file in memory is a dataset, not a batch
IGNORED = -100  # the label that losses ignore, as in torch and transformers
_LABELS = frozenset({"label", "labels", "target", "targets"})
_INPUTS = frozenset({"input_ids", "token_type_ids", "attention_mask", "position_ids"})


class BatchFault(StrEnum):
    """The reason why no finite loss can be expected of a batch."""

    MASK = "its attention mask masks every position of a row"
    NONFINITE = "it contains NaN or Inf"
    LABELS = "the loss ignores every label"
    EMPTY = "one of its tensors is empty, and the mean of an empty tensor is NaN"


def find_batch_fault(batch: Any, loss: float) -> BatchFault | None:
    """Return what is wrong with a batch whose loss was not finite. This reads the device."""
    if math.isnan(loss) and fully_masked(batch):
        return BatchFault.MASK
    if not batch_is_finite(batch):
        return BatchFault.NONFINITE
    if every_label_ignored(batch):
        return BatchFault.LABELS
    tensors = (leaf for _, leaf in named_batch_leaves(batch) if isinstance(leaf, Tensor))
    is_empty = math.isnan(loss) and any(not t.is_nested and t.numel() == 0 for t in tensors)
    return BatchFault.EMPTY if is_empty else None


@torch.no_grad()
def batch_is_finite(batch: Any) -> bool:
    """Return whether every floating-point and complex number of a batch is finite. This reads the device."""
    tensors: list[Tensor] = []
    for _, leaf in named_batch_leaves(batch):
        if isinstance(leaf, PlainValues):
            finite = _plain_values_are_finite(leaf)
        elif isinstance(leaf, float | complex):
            finite = cmath.isfinite(leaf)
        elif isinstance(leaf, Tensor):
            tensors += filter(_has_floats, _values(leaf))
            finite = True
        else:
            finite = not _is_array(leaf) or _array_is_finite(leaf)
        if not finite:
            return False
    try:
        return all_finite(tensors)  # one read of the device for all of them
    except Exception:  # noqa: BLE001 - one of them cannot be checked
        return all(map(_is_finite, tensors))


def _plain_values_are_finite(values: PlainValues) -> bool:
    kinds = set(map(type, values))
    if kinds == {float}:
        return all(map(math.isfinite, values))
    if float not in kinds and complex not in kinds:
        return True
    return all(cmath.isfinite(value) for value in values if type(value) in (float, complex))


def _values(tensor: Tensor) -> list[Tensor]:
    """Return the values of a tensor of any layout, or nothing if they cannot be read."""
    try:
        # A FakeTensor has no values, and neither has one on the meta device.
        no_values = tensor.is_meta or hasattr(tensor, "fake_mode")
        return [] if no_values else [strided_values(tensor)]
    except Exception:  # noqa: BLE001 - a tensor subclass or dtype that this torch cannot convert
        return []


def _has_floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_finite(tensor: Tensor) -> bool:
    try:
        return all_finite([tensor])
    except Exception:  # noqa: BLE001 - it has no data
        return True


def _is_array(leaf: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(leaf, numpy.ndarray | numpy.generic)


def _array_is_finite(array: Any) -> bool:
    numpy = sys.modules["numpy"]
    if array.dtype.kind not in "fc" or array.size == 0:
        return True
    if isinstance(array, numpy.memmap) and array.nbytes > _MAX_MAPPED_BYTES:
        return True
    values = numpy.atleast_1d(numpy.asarray(array))
    # An expanded array has each number once.
    values = values[tuple(slice(1) if stride == 0 else slice(None) for stride in values.strides)]
    axis = values.shape.index(max(values.shape))
    parts = numpy.array_split(values, -(-values.size // _PART), axis)
    return all(bool(numpy.isfinite(part).all()) for part in parts)


def every_label_ignored(batch: Any, ignored: int = IGNORED) -> bool:
    """Return whether an integer tensor of the batch holds only the label that losses ignore.

    Tensors whose name says that they are labels are judged; without such names, all but well-known inputs.
    This reads the device, so call it only for a step whose loss was not finite.
    """
    named, inside, other = [], [], []
    for names, leaf in named_batch_leaves(batch):
        if not (isinstance(leaf, Tensor) or _is_array(leaf)):
            continue
        if names and _is_label(names[-1]):
            named.append(leaf)
        elif any(map(_is_label, names)):
            inside.append(leaf)
        elif not names or names[-1].lower() not in _INPUTS:
            other.append(leaf)
    return any(_holds_only(leaf, ignored) for leaf in named or inside or other)


def _is_label(name: str) -> bool:
    name = name.lower().removesuffix("_ids")  # labels, lm_labels, label_ids
    return name == "y" or name.rpartition("_")[2] in _LABELS


def _holds_only(leaf: Any, number: int) -> bool:
    try:
        if isinstance(leaf, Tensor):
            [values] = _values(leaf)
            if _has_floats(values) or values.dtype is torch.bool or values.numel() == 0:
                return False
            # torch reduces a number that the dtype cannot hold: -100 equals 156 in uint8
            limits = torch.iinfo(values.dtype)
            dense = leaf.is_nested or leaf.layout is torch.strided
            return dense and limits.min <= number <= limits.max and bool((values == number).all())
        return leaf.dtype.kind in "iu" and leaf.size > 0 and bool((leaf == number).all())
    except Exception:  # noqa: BLE001 - a dtype that cannot be compared, or a tensor without data
        return False


def describe_batch(batch: Any, about: Any = None, *, contents: bool = True) -> str:
    """Return a line for the journal: the user's description, then dtypes, shapes, strings and numbers.

    Without ``contents``, strings and numbers are left out.
    """
    parts = [] if about is None else [text_of(about)]
    parts += islice(_descriptions(batch, contents), _DESCRIBED - len(parts))
    return ", ".join(
        part if len(part) <= _LENGTH else f"{part[: _LENGTH - 3]}..." for part in parts
    )


def _descriptions(batch: Any, contents: bool) -> Iterator[str]:
    for _, leaf in named_batch_leaves(batch, _SEARCHED):
        if isinstance(leaf, Tensor):
            yield f"{dtype_name(leaf.dtype)}{_shape(leaf)}"
        elif _is_array(leaf) and leaf.ndim:
            yield f"numpy.{leaf.dtype}{list(leaf.shape)}"
        elif contents:
            values = leaf if isinstance(leaf, PlainValues) else (leaf,)
            yield from (_literal(value) for value in values if isinstance(value, str | int | float))


def _shape(tensor: Tensor) -> str:
    try:
        return str(list(tensor.shape))
    except RuntimeError:  # a nested tensor of the strided layout
        return f"[{tensor.size(0)}, nested]"


def _literal(value: Any) -> str:
    """Return a string or number as Python writes it, without code of a subclass and at bounded cost."""
    if isinstance(value, str):
        return repr(str.__str__(value)[: _LENGTH + 1])
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, bool):
        return str(value)
    bits = int.bit_length(value)  # Python does not convert an integer of more than 4300 digits
    return int.__repr__(value) if bits < 1000 else f"an integer of {bits} bits"
