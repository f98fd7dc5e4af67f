"""Find a row of an attention mask in which every position is masked: a softmax over it is 0/0.

Only masks whose meaning is known are judged: an additive mask is -inf (or near it) where it masks,
``attention_mask`` is 0 there, and ``key_padding_mask`` is True. Other masks of ones and zeros may mean
either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from halfguard.formats import FP16
from halfguard.step.nested import named_batch_leaves


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
