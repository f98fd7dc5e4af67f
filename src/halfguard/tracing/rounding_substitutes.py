"""Operations that are repeated in another form: fused kernels without float64, dropout with its mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Substitute = Callable[[Mapping[str, Any], Sequence[Tensor]], list[Tensor]]


def _dropout(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    kept = results[1].to(given["input"].dtype)
    return [given["input"] * kept / (1 - given["p"] if given["p"] < 1 else 1), results[1]]


def _attention(given: Mapping[str, Any]) -> Tensor:
    """Compute attention as written: fused kernels have no second derivative, and some no float64."""
    query, key, value = given["query"], given["key"], given["value"]
    if (groups := query.shape[-3] // key.shape[-3]) > 1:
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    scale = given.get("scale")
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if given.get("is_causal"):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    mask = given.get("attn_mask", given.get("attn_bias"))
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    mixed: Tensor = scores.softmax(-1) @ value
    return mixed


def _attend(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    return [_attention(given), *results[1:]]


def _attend_backward(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    names = ("query", "key", "value")
    arriving = given.get("grad_out", given.get("grad_out_"))
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [given[name] for name in names]
        inputs = [one if one.requires_grad else one.detach().requires_grad_() for one in inputs]
        out = _attention({**given, **dict(zip(names, inputs, strict=True))})
        grads = torch.autograd.grad(out, inputs, arriving, create_graph=further)
    return [*grads, *results[3:]]


def _grouped_product(given: Mapping[str, Any], _results: Sequence[Tensor]) -> list[Tensor]:
    """Multiply the groups of rows of experts one by one; the fused kernel has no float64."""
    left, right = given["self"], given["mat2"]
    if given.get("offs") is None:
        return [left @ right]
    ends = given["offs"].tolist()
    slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if left.dim() == right.dim() == 2:
        return [torch.stack([left[:, one] @ right[one] for one in slices])]
    if left.dim() == 2:
        parts = [left[one] @ right[index] for index, one in enumerate(slices)]
        rest = left[ends[-1] :] @ torch.zeros_like(right[0])
        return [torch.cat([*parts, rest])]
    parts = [left[index] @ right[:, one] for index, one in enumerate(slices)]
    return [torch.cat([*parts, torch.zeros_like(left[0]) @ right[:, ends[-1] :]], -1)]


def substitute_for(packet: str) -> Substitute | None:
    """Return the form in which an operation is repeated: from its arguments and what it had made."""
    if packet == "native_dropout":
        return _dropout
    if packet == "_grouped_mm":
        return _grouped_product
    if packet.startswith("_scaled_dot_product"):
        return _attend_backward if packet.endswith("_backward") else _attend
    return None
