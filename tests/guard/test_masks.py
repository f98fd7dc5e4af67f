"""Masks whose meaning is known are judged; all others count as good."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from halfguard.guard.batch_checks import fully_masked
from tests.support.cases import each

KEEP = torch.tensor([[1, 1, 0], [1, 0, 0]])
NONE = torch.tensor([[1, 1, 0], [0, 0, 0]])
ADDED = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])
ALL = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]])


@each(
    ("name", "mask"),
    [
        ("attention_mask", NONE),
        ("attention_mask", NONE.bool()),
        ("attention_mask", NONE.float()),
        ("decoder_attention_mask", NONE),
        ("key_padding_mask", NONE == 0),
        ("src_key_padding_mask", NONE == 0),
        ("mask", ALL),
        ("attn_mask", ALL.half()),
        ("attn_mask", ALL.clamp(min=torch.finfo(torch.float32).min)),
        ("mask", ALL.expand(2, 3, 2, 2)),
    ],
)
def test_a_fully_masked_row(name: str, mask: Tensor) -> None:
    assert fully_masked({"x": torch.ones(2), "inner": {name: mask}}) == name


@each(
    ("name", "mask"),
    [
        ("attention_mask", KEEP),
        ("attention_mask", KEEP.float()),
        ("attention_mask", torch.zeros(2, 3)),  # added to scores, it masks nothing
        ("attention_mask", torch.tensor([[0.0, -1e4], [0.0, 0.0]])),
        ("attention_mask", NONE.expand(2, 1, 2, 3)),  # rows of padding
        ("attention_mask", torch.zeros(0, 3)),
        ("attention_mask", torch.zeros(3, dtype=torch.int64)),
        ("key_padding_mask", KEEP == 0),
        ("key_padding_mask", torch.ones(2, 3)),
        ("padding_mask", torch.ones(2, 3, dtype=torch.bool)),  # both meanings are in use
        ("attn_mask", torch.zeros(2, 3, dtype=torch.bool)),
        ("mask", ADDED),
        ("mask", NONE),
        ("x", ALL),
        ("attention_mask", torch.ones(2, 3).to_sparse()),
        ("attention_mask", "no tensor"),
    ],
)
def test_a_mask_that_is_good_or_not_understood(name: str, mask: Any) -> None:
    assert fully_masked({name: mask}) == ""


@each("batch", [None, ALL, [ALL, NONE], "text"])
def test_a_mask_without_a_name_is_not_judged(batch: Any) -> None:
    assert fully_masked(batch) == ""
