"""Transformer encoders and small GPTs."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class SensorAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-2, -1)
        mixed: Tensor = self.out(F.softmax(scores, dim=-1) @ v)
        return mixed


class SensorEncoder(nn.Module):
    """Reads 12 raw readings of 8 sensors each, and says which machine they come from."""

    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.attention = SensorAttention(width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = self.norm(h + self.attention(h))
        h = h + self.mlp(h)
        logits: Tensor = self.head(h.mean(1))
        return logits


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def encoder_raw_sensors(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = SensorEncoder()
    centres = torch.randn(4, 8) * 120 + 400
    batches = []
    for _ in range(50):
        y = torch.randint(4, (32,))
        batches.append((centres[y][:, None] + 80 * torch.randn(32, 12, 8), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=1e-3), seed=seed
    )


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        causal = torch.ones(t, t, device=x.device).tril()
        mask = (causal * keep[:, None, None, :]).to(att.dtype)
        att = att + (1.0 - mask) * -1e9
        y = F.softmax(att, dim=-1) @ v
        out: Tensor = self.proj(y.transpose(1, 2).reshape(b, t, c))
        return out


class PaddedGPT(nn.Module):
    def __init__(self, vocabulary: int = 24, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.attentions = nn.ModuleList(CausalAttention(width, 4) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).float()
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for i in range(2):
            x = x + self.attentions[i](self.norms[2 * i](x), keep)
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        logits: Tensor = self.head(x)
        return logits


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def gpt_left_padding(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = PaddedGPT()
    batches = []
    for index in range(50):
        start = torch.randint(1, 24, (16, 1))
        ids = (start + 3 * torch.arange(16)) % 23 + 1
        if index % 3 == 2:  # prompts of different lengths, padded on the left
            pad = torch.randint(0, 8, (16, 1))
            ids = ids.masked_fill(torch.arange(16) < pad, 0)
        batches.append(ids)
    return Workload(
        model, next_token, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class PointerAttention(nn.Module):
    """Looks up the item whose key is most like the query."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, width), nn.Linear(8, width)
        self.value = nn.Linear(4, width)
        self.read = nn.Linear(width, 4)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = self.query(query), self.key(keys), self.value(values)
        scores = (q[:, None] @ k.transpose(1, 2)).squeeze(1)
        weights = torch.exp(scores).to(scores.dtype)
        weights = weights / weights.sum(-1, keepdim=True)
        out: Tensor = self.read((weights[:, None].to(v.dtype) @ v).squeeze(1))
        return out


def recall(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    query, keys, values, wanted = batch
    return F.mse_loss(model(query, keys, values).float(), wanted)


def pointer_recall(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = PointerAttention()
    batches = []
    for _ in range(50):
        keys, values = torch.randn(64, 10, 8), torch.randn(64, 10, 4)
        chosen = torch.randint(10, (64,))
        rows = torch.arange(64)
        query = keys[rows, chosen] + 0.1 * torch.randn(64, 8)
        batches.append((query, keys, values, values[rows, chosen]))
    return Workload(
        model, recall, batches, torch.optim.Adam(model.parameters(), lr=1e-2), seed=seed
    )


class NewGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


class FactorizedGPT(nn.Module):
    """A decoder with ALBERT's small embeddings; their projection starts with a large gain."""

    def __init__(self, vocabulary: int = 24, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.grow = nn.Embedding(vocabulary, 8), nn.Linear(8, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.up, self.act, self.down = nn.Linear(width, 64), NewGELU(), nn.Linear(64, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        nn.init.normal_(self.up.weight, std=60.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.grow(self.tokens(ids))
        x = x + self.mix(x)[0]
        x = x + self.down(self.act(self.up(x)))
        logits: Tensor = self.head(self.norm(x))
        return logits


def gpt_hand_gelu(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = FactorizedGPT()
    batches = []
    for _ in range(50):
        start = torch.randint(1, 24, (16, 1))
        batches.append((start + 5 * torch.arange(16)) % 23 + 1)
    return Workload(
        model, next_token, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )
