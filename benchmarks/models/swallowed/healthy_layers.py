"""Healthy models: masks, padding, routing, attention, norms, recurrence; all of them with traps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.swallowed.base import Apply, Model, Step, classes, classify, seeded

INF = torch.inf
Make = Callable[[int], Step]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 1))


def vectors(
    *layers: Callable[[], nn.Module], width: int = 16, out: int = 16, by: float = 1.0
) -> Make:
    """A classifier of vectors with the given layers in the middle."""

    def make(seed: int) -> Step:
        def build() -> nn.Module:
            middle = [layer() for layer in layers]
            return nn.Sequential(nn.Linear(width, 16), *middle, nn.Linear(out, 4))

        return Step(seeded(seed, build), classify, (noise(seed, 16, width) * by, classes(seed, 16)))

    return make


def pictures(*layers: Callable[[], nn.Module]) -> Make:
    def make(seed: int) -> Step:
        def build() -> nn.Module:
            middle = [layer() for layer in layers]
            pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
            return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *middle, *pool)

        return Step(seeded(seed, build), classify, (noise(seed, 8, 3, 8, 8), classes(seed, 8)))

    return make


def sequences(build: Callable[[], nn.Module]) -> Make:
    """A classifier of sequences of 6 vectors."""

    def make(seed: int) -> Step:
        return Step(seeded(seed, build), classify, (noise(seed, 8, 6, 16), classes(seed, 8)))

    return make


class Attention(nn.Module):
    """Self-attention, with its scores masked by ``mask``, before a mean over the sequence."""

    def __init__(
        self, mask: Callable[[Tensor], Tensor], *, drop: float = 0.0, scale: float = 0.25
    ) -> None:
        super().__init__()
        self.norm, self.qkv, self.head = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 4)
        self.mask, self.drop, self.scale = mask, nn.Dropout(drop), scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = self.mask((q @ k.transpose(1, 2)) * self.scale)
        out: Tensor = self.head((x + self.drop(torch.softmax(scores, -1)) @ v).mean(1))
        return out


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
PADDING = torch.arange(6) < torch.tensor([6, 4, 5, 3, 6, 2, 6, 1])[:, None]


def add_1e9_in_half(scores: Tensor) -> Tensor:
    return scores + (~CAUSAL).to(scores.dtype) * -1e9


def add_finfo_twice(scores: Tensor) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    return scores + (~CAUSAL) * lowest + (~PADDING[:, None]) * lowest


def bias_cast_to_half(scores: Tensor) -> Tensor:
    return scores + torch.where(CAUSAL, 0.0, -1e9).to(scores.dtype)


def log_of_mask(scores: Tensor) -> Tensor:
    return scores + CAUSAL.to(scores.dtype).log()


def log_of_soft_mask(scores: Tensor) -> Tensor:
    return scores + (CAUSAL.to(scores.dtype) + 1e-10).log()


def top_three(scores: Tensor) -> Tensor:
    lowest = scores.topk(3, -1).values[..., -1:]
    return scores.masked_fill(scores < lowest, -INF)


def alibi(scores: Tensor) -> Tensor:
    place = torch.arange(6)
    slope = (place - place[:, None]).abs().to(scores.dtype) * -2e4
    return scores + slope * 2


def soft_cap(scores: Tensor) -> Tensor:
    return 30 * torch.tanh(scores / 30)


def minus_maximum(scores: Tensor) -> Tensor:
    scores = scores.masked_fill(~CAUSAL, -INF)
    return scores - scores.amax(-1, keepdim=True).detach()


class Exponentials(nn.Module):
    """Softmax by hand, with huge negative logits that vanish."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x).masked_fill(~PADDING[..., None], -3e4)
        weight = torch.exp(score - score.amax(1, keepdim=True)).to(x.dtype)
        out: Tensor = self.head((weight * x).sum(1) / weight.sum(1))
        return out


class Fused(nn.Module):
    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.qkv, self.head, self.mask = nn.Linear(16, 48), nn.Linear(16, 4), mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(-1, 6, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        out: Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
        return out


class Linearized(nn.Module):
    """Attention by feature maps and a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k[..., None] * v[..., None, :]).cumsum(1)
        total = (q * k.cumsum(1)).sum(-1, keepdim=True)
        mixed = (q[..., None, :] @ state.to(q.dtype))[..., 0, :] / (total + 1e-6)
        out: Tensor = self.head(mixed.mean(1))
        return out


class Routed(nn.Module):
    """Two of four experts per sample, by top-k; the others get -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        best = logits.topk(2, -1)
        gate = torch.full_like(logits, -INF).scatter(-1, best.indices, best.values).softmax(-1)
        parts = torch.stack([expert(x) for expert in self.experts], 1)
        out: Tensor = self.head((gate.unsqueeze(-1) * parts).sum(1))
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.body, self.head = kind(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0][:, -1])
        return out


class Graph(nn.Module):
    """Messages along edges, a softmax over the edges of a node, some nodes without edges."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value, self.head = nn.Linear(16, 1), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        source, target = torch.arange(24) % 8, torch.arange(24) // 4
        score = self.score(x)[source]
        top = torch.full((8, 1), -INF, dtype=score.dtype)
        top = top.index_reduce(0, target, score.detach(), "amax")
        weight = torch.exp(score - top[target])
        total = torch.zeros(8, 1, dtype=weight.dtype).index_add(0, target, weight)
        message = weight / total[target] * self.value(x)[source]
        mixed = torch.zeros(8, 16, dtype=message.dtype).index_add(0, target, message)
        out: Tensor = self.head(mixed + x)
        return out


def graph(seed: int) -> Step:
    return Step(seeded(seed, Graph), classify, (noise(seed, 8, 16), classes(seed, 8)))


class Tied(nn.Module):
    """A small language model with tied weights and padded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 16, padding_idx=0), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = torch.full((6, 6), -INF).triu(1)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        out: Tensor = self.norm(x) @ self.embed.weight.T
        return out


def _next_token(model: Model, tokens: Tensor) -> Tensor:
    logits = model(tokens)[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)


def language(seed: int) -> Step:
    tokens = torch.randint(1, 20, (8, 6), generator=torch.Generator().manual_seed(seed + 1))
    tokens[::2, 4:] = 0
    return Step(seeded(seed, Tied), _next_token, tokens)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(add_1e9_in_half, drop=0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


def of(body: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Apply(body)


def huber_by_hand(x: Tensor) -> Tensor:
    """Both branches are computed; the square that overflows is never chosen."""
    x = x * 1000
    return torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5) * 1e-3


def clamped_square(x: Tensor) -> Tensor:
    x = x * 500
    return (x * x).clamp(max=100.0) * 0.01


def saturated(x: Tensor) -> Tensor:
    return torch.sigmoid(x * 3e4) + torch.tanh(x * 5e4) * 0.1 + torch.sigmoid(x)


def sigmoid_by_hand(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x * 20).to(x.dtype))


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square() + 0.0 * x


def dead_branch(x: Tensor) -> Tensor:
    (x * 1e4 * 1e4).detach()
    return torch.tanh(x)


def rounded(x: Tensor) -> Tensor:
    """A straight-through estimator."""
    return x + (torch.round(x * 8) / 8 - x).detach()


def gumbel(x: Tensor) -> Tensor:
    return F.gumbel_softmax(x.float(), tau=0.5, hard=True) * torch.tanh(x)


def safe_rms(x: Tensor) -> Tensor:
    wide = (x * 300).float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def small_gate(x: Tensor) -> Tensor:
    """Gates that are 0 in half and 1e-9 in FP32, beside others that are not."""
    return torch.sigmoid(x * 40 - 5) * x + x


def tiny_noise(x: Tensor) -> Tensor:
    return x + torch.full_like(x, 1e-4) * torch.full_like(x, 1e-5)


MODELS: dict[str, Make] = {
    "mask -1e9 in half": sequences(lambda: Attention(add_1e9_in_half)),
    "mask finfo.min twice": sequences(lambda: Attention(add_finfo_twice)),
    "mask cast to half": sequences(lambda: Attention(bias_cast_to_half)),
    "mask -inf": sequences(lambda: Attention(lambda s: s.masked_fill(~CAUSAL, -INF))),
    "padding -inf": sequences(lambda: Attention(lambda s: s.masked_fill(~PADDING[:, None], -INF))),
    "log of a mask": sequences(lambda: Attention(log_of_mask)),
    "log of a mask plus eps": sequences(lambda: Attention(log_of_soft_mask)),
    "top-k attention": sequences(lambda: Attention(top_three)),
    "alibi beyond half": sequences(lambda: Attention(alibi)),
    "soft cap": sequences(lambda: Attention(soft_cap)),
    "minus the maximum": sequences(lambda: Attention(minus_maximum)),
    "attention with dropout": sequences(lambda: Attention(add_1e9_in_half, drop=0.3)),
    "sharp attention": sequences(
        lambda: Attention(lambda s: s.masked_fill(~CAUSAL, -INF), scale=8.0)
    ),
    "softmax by hand": sequences(Exponentials),
    "fused attention": sequences(lambda: Fused(None)),
    "fused attention, mask": sequences(lambda: Fused(CAUSAL)),
    "fused attention, -1e9": sequences(lambda: Fused(torch.where(CAUSAL, 0.0, -1e9))),
    "linear attention": sequences(Linearized),
    "checkpointed attention": sequences(Recomputed),
    "lstm": sequences(lambda: Recurrent(nn.LSTM)),
    "gru": sequences(lambda: Recurrent(nn.GRU)),
    "rnn": sequences(lambda: Recurrent(nn.RNN)),
    "routed experts": vectors(Routed, out=4),
    "graph attention": graph,
    "tied language model": language,
    "plain mlp": vectors(nn.ReLU),
    "batch norm": vectors(lambda: nn.BatchNorm1d(16), nn.GELU),
    "layer norm": vectors(lambda: nn.LayerNorm(16), nn.SiLU),
    "rms norm": vectors(lambda: nn.RMSNorm(16), nn.Tanh),
    "rms norm in float": vectors(of(safe_rms)),
    "dropout": vectors(lambda: nn.Dropout(0.5), nn.ReLU),
    "huber by hand": vectors(of(huber_by_hand)),
    "clamped square": vectors(of(clamped_square), nn.Tanh),
    "saturated gates": vectors(of(saturated)),
    "sigmoid by hand": vectors(of(sigmoid_by_hand)),
    "squared relu": vectors(of(squared_relu)),
    "dead branch": vectors(of(dead_branch)),
    "straight-through": vectors(of(rounded)),
    "gumbel softmax": vectors(of(gumbel)),
    "vanishing gates": vectors(of(small_gate)),
    "vanishing product": vectors(of(tiny_noise)),
    "relu6": vectors(nn.ReLU6, by=100.0),
    "loud inputs": vectors(lambda: nn.LayerNorm(16), nn.ReLU, by=3000.0),
    "small inputs": vectors(lambda: nn.LayerNorm(16), nn.ReLU, by=1e-4),
    "convolutions": pictures(lambda: nn.BatchNorm2d(8), nn.ReLU, lambda: nn.MaxPool2d(2)),
    "group norm": pictures(lambda: nn.GroupNorm(2, 8), nn.SiLU),
    "padded maximum": pictures(
        of(lambda x: F.pad(x, (1, 1, 1, 1), value=-INF)), lambda: nn.MaxPool2d(3, 2)
    ),
}
