"""How two lists of log-probabilities of the same tokens agree; numbers that verl and TRL log as well."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfguard.records.mismatch import Agreement, LengthShare

_RESAMPLES = 1000
_BUCKETS = (0, 64, 256, 1024, 4096)


def size(apart: Tensor) -> float:
    """Return the root of the mean square."""
    return float(apart.square().mean().sqrt())


def agreement(name: str, rollout: Tensor, trainer: Tensor, clip: float) -> Agreement:
    """Compare the tokens of a rollout; ratios are probability of the trainer over that of the rollout."""
    apart = rollout - trainer
    ratio = torch.exp(-apart)
    return Agreement(
        name=name,
        tokens=len(apart),
        mean=float(apart.mean()),
        size=size(apart),
        largest=float(apart.abs().max()),
        k3=float(_k3(apart).mean()),
        chi2=float(ratio.square().mean()) - 1,
        sample=float(ratio.mean() ** 2 / ratio.square().mean()),
        outside=float(_is_outside(apart, clip).double().mean()),
    )


def _k3(apart: Tensor) -> Tensor:
    return torch.expm1(-apart) + apart


def _is_outside(apart: Tensor, clip: float) -> Tensor:
    ratio = torch.exp(-apart)
    return (ratio < 1 - clip) | (ratio > 1 + clip)


def by_length(apart: Tensor, positions: Tensor, clip: float) -> tuple[LengthShare, ...]:
    """Return the share of tokens outside the clip range by their position in the completion."""
    found = []
    for first, end in zip(_BUCKETS, (*_BUCKETS[1:], 10**9), strict=True):
        own = apart[(positions >= first) & (positions < end)]
        if len(own):
            last = min(end, int(positions.max()) + 1) - 1
            outside = float(_is_outside(own, clip).double().mean())
            found.append(LengthShare(first=first, last=last, outside=outside, size=size(own)))
    return tuple(found)


def ratio_of_k3(one: Tensor, other: Tensor, lengths: Sequence[int]) -> tuple[float, float, float]:
    """Return the ratio of two k3 over the same sequences, and its 95% interval by resampling them."""
    sums = torch.stack([
        torch.stack([part.sum() for part in torch.split(_k3(apart), list(lengths))]) for apart in (one, other)
    ])  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(lengths), (_RESAMPLES, len(lengths)), generator=generator)
    top, bottom = (sums[at][drawn].sum(-1) for at in (0, 1))
    low, high = torch.quantile(top / bottom, torch.tensor([0.025, 0.975], dtype=top.dtype))
    return float(sums[0].sum() / sums[1].sum()), float(low), float(high)
