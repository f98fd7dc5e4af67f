"""Ten small jobs that train in FP32 and overflow in FP16, each for a reason found in real models.

Every job function is an ENTRY: ``halfguard plan examples/overflowing.py:t5 -o plan.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfguard import Workload

WIDTH, CLASSES = 16, 4
Batch = tuple[Tensor, Tensor]


def job(seed: int, model: nn.Module, shape: Sequence[int], lr: float = 1e-3) -> Workload:
    """Classify noise by the signs of two of its sums, with eight batches that repeat."""
    noise = torch.Generator().manual_seed(seed + 1)

    def batch() -> Batch:
        x = torch.randn(8, *shape, generator=noise)
        parts = x.flatten(1)
        half = parts.shape[1] // 2
        return x, (parts[:, :half].sum(1) > 0) + 2 * (parts[:, half:].sum(1) > 0).long()

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return Workload(model, cross_entropy, [batch() for _ in range(8)], optimizer)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


@torch.no_grad()
def stretch(linear: nn.Module, factor: float) -> None:
    """Make a layer's outputs larger, as in a model trained in BF16 or a checkpoint from elsewhere."""
    for parameter in linear.parameters():
        parameter.mul_(factor)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.wi, self.wo = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wo(torch.relu(self.wi(self.norm(x))))
        return out


class Attention(nn.Module):
    """Attention scores that are not divided by the square root of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        out: Tensor = self.out(mixed)
        return out


class Residual(nn.Module):
    """Residual blocks, and a head on the mean over tokens."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.embed(x)
        for block in self.blocks:
            stream = stream + block(stream)
        logits: Tensor = self.head(self.norm(stream).mean(1))
        return logits


def t5(seed: int) -> Workload:
    """The second projection of a feed-forward block, as in T5: huggingface/transformers#20683."""
    model = Residual([FeedForward() for _ in range(4)])
    stretch(model.blocks[1].wo, 3e5)  # type: ignore[arg-type]
    return job(seed, model, (3, WIDTH))


def attention(seed: int) -> Workload:
    """Products of queries and keys that are not divided by the square root of the width."""
    blocks = [Attention() for _ in range(3)]
    with torch.no_grad():
        blocks[1].qkv.bias[: 2 * WIDTH] = 75.0  # the part for queries and keys
    return job(seed, Residual(blocks), (3, WIDTH), lr=3e-4)


class HandRMS(nn.Module):
    """A norm that computes squares in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def rms_norm(seed: int) -> Workload:
    """A hand-written RMS norm after a layer with outputs of several thousand."""
    layers = [nn.Linear(WIDTH, WIDTH), HandRMS(), nn.Linear(WIDTH, WIDTH), nn.GELU()]
    tail = [nn.Linear(WIDTH, WIDTH), HandRMS(), nn.Linear(WIDTH, CLASSES)]
    model = nn.Sequential(*layers, *tail)
    stretch(model[0], 6000.0)
    return job(seed, model, (WIDTH,))


def logits(seed: int) -> Workload:
    """A head whose logits are unscaled scores of about one hundred thousand."""
    model = Residual([FeedForward() for _ in range(2)])
    stretch(model.head, 1e5)
    return job(seed, model, (3, WIDTH), lr=1e-4)


class Aggregation(nn.Module):
    """The mean of the neighbours' messages: their sum divided by the degree."""

    source: Tensor
    target: Tensor
    degree: Tensor

    def __init__(self, edges: Tensor, nodes: int) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH, WIDTH)
        source, target = edges
        degree = torch.bincount(target, minlength=nodes).clamp(min=1)[:, None]
        for name, value in (("source", source), ("target", target), ("degree", degree)):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        message = self.message(x)[:, self.source]
        total = torch.zeros(x.shape, dtype=message.dtype, device=x.device)
        return total.index_add(1, self.target, message) / self.degree


class Graph(nn.Module):
    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        out: Tensor = self.head(self.norm(x).mean(1))
        return out


def graph(seed: int) -> Workload:
    """A node with two thousand edges: the sum overflows, the mean would not."""
    nodes = 6
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    hub = torch.stack([torch.arange(2000) % (nodes - 1) + 1, torch.zeros(2000, dtype=torch.long)])
    calm, busy = Aggregation(ring, nodes), Aggregation(torch.cat([ring, hub], 1), nodes)
    stretch(busy.message, 150.0)
    return job(seed, Graph([calm, busy, Aggregation(ring, nodes)]), (nodes, WIDTH))


class Sizes(nn.Module):
    """Box sizes from their logarithms, in the dtype of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.linear.bias, 11.0)

    def forward(self, x: Tensor) -> Tensor:
        size = self.linear(x)
        return torch.exp(size).to(size.dtype)


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x + 1) / 11


def detector(seed: int) -> Workload:
    """A detector's head with exp: a size of e**12 pixels is finite only in FP32."""
    body = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)]
    model = nn.Sequential(*body, Sizes(), Logarithm(), nn.Linear(WIDTH, CLASSES))
    return job(seed, model, (WIDTH,))


class Doubling(nn.Module):
    """Layers that each at least double the residual stream, without a norm."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        for weight in self.layers.parameters():
            if weight.dim() == 2:
                nn.init.orthogonal_(weight, gain=3.0)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def deep_residual(seed: int) -> Workload:
    """A deep residual stack without a norm: every layer more than doubles the stream."""
    return job(seed, Doubling(12), (WIDTH,))


class Router(nn.Module):
    """Weights of experts from squared and normalized scores."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, experts)
        self.floor = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        score = torch.relu(self.scores(x))
        square = score * score + self.floor
        return square / square.amax(-1, keepdim=True)


class Experts(nn.Module):
    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), Router(experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weight = self.router(h)
        outputs = torch.stack([torch.relu(expert(h)) for expert in self.experts], -1)
        mixed: Tensor = (outputs * weight[..., None, :]).mean(-1)
        return mixed


def router(seed: int) -> Workload:
    """A mixture of experts whose router squares its scores in half precision."""
    mixture = Experts()
    stretch(mixture.router.scores, 800.0)
    return job(seed, Residual([FeedForward(), mixture, FeedForward()]), (3, WIDTH))


def vae(seed: int) -> Workload:
    """An image decoder with a convolution whose outputs overflow, as in SDXL."""
    convolutions = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1)]
    for convolution in convolutions:
        layers += [convolution, nn.GroupNorm(2, 8), nn.SiLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, CLASSES))
    stretch(convolutions[2], 3e5)
    return job(seed, model, (16,))


def transformer(seed: int) -> Workload:
    """Attention and feed-forward blocks, three of which overflow for different reasons."""
    blocks = [layer for _ in range(4) for layer in (Attention(), FeedForward())]
    model = Residual(blocks)
    stretch(blocks[3].wo, 3e5)  # type: ignore[arg-type]
    with torch.no_grad():
        for index in (0, 6):
            blocks[index].qkv.bias[: 2 * WIDTH] = 75.0  # type: ignore[union-attr, operator]
    return job(seed, model, (3, WIDTH))


JOBS: dict[str, Callable[[int], Workload]] = {
    "t5": t5,
    "attention": attention,
    "rms_norm": rms_norm,
    "logits": logits,
    "graph": graph,
    "detector": detector,
    "deep_residual": deep_residual,
    "router": router,
    "vae": vae,
    "transformer": transformer,
}
