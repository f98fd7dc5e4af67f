"""Models that are fine, each with infinities put in on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.zoo.base import Job, in_full, in_half, noise, seeded

INF = torch.inf


class Scores(nn.Module):
    """Attention whose mask is put on by ``how``."""

    mask: Tensor

    def __init__(self, how: Callable[[Tensor], Tensor], *, checkpointed: bool = False) -> None:
        super().__init__()
        self.qkv, self.how, self.checkpointed = nn.Linear(8, 24), how, checkpointed
        self.register_buffer("mask", torch.full((6, 6), -INF).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            out: Tensor = checkpoint(self._attend, x, use_reentrant=False)
            return out
        return self._attend(x)

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.how(q @ k.transpose(1, 2) / 8**0.5)
        out: Tensor = torch.softmax(scores, -1).to(v.dtype) @ v
        return out


class Fused(Scores):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        seen = torch.ones(6, 6, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Buffered(Scores):
    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        out: Tensor = torch.softmax(q @ k.transpose(1, 2) + self.mask, -1).to(v.dtype) @ v
        return out


class Decoder(Scores):
    """Scores of paths, -inf where a path cannot start; log-sum-exp over the rest."""

    def _attend(self, x: Tensor) -> Tensor:
        emission = self.qkv(x)
        alpha = torch.full((x.shape[0], 24), -INF)
        alpha[:, 0] = 0.0
        for step in emission.unbind(1):
            alpha = torch.logsumexp(alpha[:, :, None] + torch.zeros(24, 24), 1) + step
        return -torch.logsumexp(alpha, -1)


class Pooled(Scores):
    """A maximum over what is padded with -inf."""

    def _attend(self, x: Tensor) -> Tensor:
        return F.pad(self.qkv(x), (0, 3), value=-INF).amax(-1)


def rows() -> Tensor:
    return torch.arange(6)


def by_masked_fill(scores: Tensor) -> Tensor:
    return scores.masked_fill(rows()[:, None] < rows(), -INF)


def by_where(scores: Tensor) -> Tensor:
    return torch.where(rows()[:, None] >= rows(), scores, torch.tensor(-INF, dtype=scores.dtype))


def by_index(scores: Tensor) -> Tensor:
    scores = scores.clone()
    scores[:, rows()[:, None] < rows()] = -INF
    return scores


def by_log_of_prior(scores: Tensor) -> Tensor:
    """log(0) is -inf, and goes into a softmax that knows what to do with it."""
    return scores + torch.ones(6, 6).tril().log()


def by_top_k(scores: Tensor) -> Tensor:
    lowest = scores.topk(3, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < lowest, -INF)


def _make(build: Callable[[], nn.Module], *, half: bool = False) -> Callable[[int], Job]:
    def make(seed: int) -> Job:
        return Job(seeded(seed, build), in_half if half else in_full, noise(seed, 2, 6, 8))

    return make


HEALTHY: dict[str, Callable[[int], Job]] = {
    "masked_fill": _make(lambda: Scores(by_masked_fill)),
    "masked_fill in half": _make(lambda: Scores(by_masked_fill), half=True),
    "where": _make(lambda: Scores(by_where)),
    "index assignment": _make(lambda: Scores(by_index)),
    "log of a prior": _make(lambda: Scores(by_log_of_prior)),
    "top k": _make(lambda: Scores(by_top_k), half=True),
    "checkpointed": _make(lambda: Scores(by_masked_fill, checkpointed=True), half=True),
    "fused attention": _make(lambda: Fused(by_masked_fill)),
    "mask in a buffer": _make(lambda: Buffered(by_masked_fill)),
    "path scores": _make(lambda: Decoder(by_masked_fill)),
    "padded maximum": _make(lambda: Pooled(by_masked_fill)),
}
