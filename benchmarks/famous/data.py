"""Small tasks that a model can learn in 200 steps: arithmetic sequences, and images with a stripe."""

from __future__ import annotations

import torch
from torch import Tensor

Batch = dict[str, Tensor]
VOCABULARY = 64
ROWS, LENGTH = 4, 16


def sequences(length: int = LENGTH) -> Tensor:
    """Return rows of tokens that grow by 1, 2 or 3."""
    start, by = torch.randint(VOCABULARY, (ROWS, 1)), torch.randint(1, 4, (ROWS, 1))
    return (start + by * torch.arange(length)) % VOCABULARY


def causal() -> Batch:
    """Return tokens to continue, to repeat by a decoder, or to name one by one."""
    tokens = sequences()
    return {"input_ids": tokens, "labels": tokens.clone()}


def left_padded() -> Batch:
    """Return tokens with up to eight places of padding on the left."""
    batch = causal()
    padding = torch.arange(LENGTH) < torch.randint(1, 9, (ROWS, 1))
    labels = batch["labels"].masked_fill(padding, -100)
    return batch | {"attention_mask": (~padding).long(), "labels": labels}


def images(size: int = 32, channels: int = 3, classes: int = 4) -> Batch:
    """Return noise with a bright stripe, whose place is the class."""
    labels = torch.randint(classes, (ROWS,))
    pixels = torch.randn(ROWS, channels, size, size)
    width = size // classes
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[:, :, label * width : (label + 1) * width] += 2
    return {"pixel_values": pixels, "labels": labels}
