"""Faults inside the model: norms, gates, attention, convolutions, graphs, recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.swallowed.base import (
    Planted,
    Step,
    classes,
    classifier,
    classify,
    images,
    loud,
    seeded,
)


def rms_norm_product(x: Tensor) -> Tensor:
    square = x * x  # <- rms-norm-product
    return x / torch.sqrt(square.mean(-1, keepdim=True) + 1e-6)


def rms_norm_rsqrt(x: Tensor) -> Tensor:
    power = (x * x).mean(-1, keepdim=True)  # <- rms-norm-rsqrt
    return x * torch.rsqrt(power + 1e-6)


def l2_normalize(x: Tensor) -> Tensor:
    length = (x * x).sum(-1, keepdim=True).sqrt()  # <- l2-normalize-by-product
    return 4 * x / (length + 1e-6)


def variance_by_moments(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    second = torch.mul(x, x).mean(-1, keepdim=True)  # <- variance-by-moments
    return (x - mean) / torch.sqrt(second - mean * mean + 1e-5)


def batch_statistics(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    variance = (centred * centred).mean(0)  # <- batch-statistics
    return centred / (variance + 1e-5).sqrt()


def einsum_norm(x: Tensor) -> Tensor:
    energy = torch.einsum("bi,bi->b", x, x)  # <- einsum-norm
    return 4 * x / energy.sqrt()[:, None]


def bmm_norm(x: Tensor) -> Tensor:
    energy = (x.unsqueeze(1) @ x.unsqueeze(2)).squeeze(2)  # <- bmm-norm
    return x * (energy + 1e-6) ** -0.5


def forward_clip(x: Tensor) -> Tensor:
    length = (x * x).sum(-1, keepdim=True).sqrt()  # <- forward-clip
    return x * (5.0 / (length + 1e-6)).clamp(max=1.0)


def saturated_ratio(x: Tensor) -> Tensor:
    gate = torch.tanh(x * x * 3e-6)  # <- saturated-ratio
    return gate * torch.tanh(x)


def inverse_variance(x: Tensor) -> Tensor:
    parts = x.view(-1, 4, 8)
    variance = (parts * parts).mean(-1, keepdim=True)  # <- inverse-variance
    weight = 1e4 / (1e4 + variance)
    return (weight * torch.tanh(parts)).flatten(1)


def tiny_rms(x: Tensor) -> Tensor:
    x = x * 1e-4
    power = (x * x).mean(-1, keepdim=True).detach()  # <- tiny-rms
    return x / (1e-4 + torch.sqrt(power.float() + 1e-12))


def small_share(x: Tensor) -> Tensor:
    small = x.detach().abs() * 2e-8  # <- small-share
    return 32 * small / (small.sum(-1, keepdim=True) + 1e-9) * torch.tanh(x)


def nan_to_zero(x: Tensor) -> Tensor:
    scores = torch.nan_to_num(x * 300, nan=0.0, posinf=0.0, neginf=0.0)  # <- nan-to-num-to-zero
    return torch.tanh(scores * 1e-5)


def clamp_min(x: Tensor) -> Tensor:
    power = (x * x).mean(-1, keepdim=True)  # <- clamped-root
    return x / power.sqrt().clamp_min(1e-3)


def in_place(x: Tensor) -> Tensor:
    power = x.clone()
    power.mul_(x)  # <- in-place-square
    return x / power.mean(-1, keepdim=True).sqrt()


def written_slices(x: Tensor) -> Tensor:
    powers = torch.empty(x.shape[0], 2, dtype=x.dtype)
    for index, part in enumerate(x.chunk(2, -1)):
        powers[:, index] = (part * part).mean(-1)  # <- written-slices
    return x / powers.sum(-1, keepdim=True).sqrt().to(x.dtype)


def local_contrast(x: Tensor) -> Tensor:
    power = F.avg_pool2d(x * x, 3, 1, 1)  # <- local-contrast
    return x / torch.sqrt(power + 1.0)


def response_norm(x: Tensor) -> Tensor:
    power = F.conv2d(x.abs(), torch.full((8, 8, 3, 3), 10.0), padding=1)  # <- response-norm
    return x / (1.0 + 0.01 * power)


def squeeze_excite(x: Tensor) -> Tensor:
    energy = (x * x).mean((2, 3), keepdim=True)  # <- squeeze-energy
    return x * torch.rsqrt(energy + 1.0)


def global_response(x: Tensor) -> Tensor:
    length = torch.sqrt((x * x).sum((2, 3), keepdim=True))  # <- global-response
    return 8 * x / (1.0 + length)


def checkpointed_body(x: Tensor) -> Tensor:
    power = (x * x).mean(-1, keepdim=True)  # <- checkpointed-norm
    return x / (power + 1e-6).sqrt()


def checkpointed(x: Tensor) -> Tensor:
    out: Tensor = checkpoint(checkpointed_body, x, use_reentrant=False)
    return out


class QueryNorm(nn.Module):
    """Attention whose queries and keys are divided by their length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = 4 * q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6)  # <- query-norm
        k = F.normalize(k.float(), dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2), -1)
        out: Tensor = self.out((attention @ F.layer_norm(v, (16,))).mean(1))
        return out


def query_norm(seed: int) -> Step:
    x = torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(seed + 1))
    x[:, :2] *= 1000
    return Step(seeded(seed, QueryNorm), classify, (x, classes(seed, 8)))


class ColdAttention(nn.Module):
    """Scores that are divided by a temperature after the product: their negative half overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x).abs(), self.k(x).abs()
        scores = -(q @ k.transpose(1, 2))  # <- cold-attention
        scores = torch.where(torch.eye(6, dtype=torch.bool), 0.0, scores) / 2e5
        out: Tensor = (torch.softmax(scores, -1) @ torch.tanh(self.v(x))).mean(1)
        return out


def cold_attention(seed: int) -> Step:
    x = 220 * torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(seed + 1))
    return Step(seeded(seed, ColdAttention), classify, (x, classes(seed, 8)))


class DistanceAttention(nn.Module):
    """Attention by distance: far keys get no weight at all in half."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.v = nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        points = self.embed(x)
        gap = points[:, :, None] - points[:, None]
        distance = (gap * gap).sum(-1)  # <- distance-attention
        out: Tensor = (torch.softmax(-distance / 4e5, -1) @ torch.tanh(self.v(x))).mean(1)
        return out


def distance_attention(seed: int) -> Step:
    x = torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(seed + 1))
    x[:, ::2] *= 600
    return Step(seeded(seed, DistanceAttention), classify, (x, classes(seed, 8)))


class GraphSum(nn.Module):
    """Attention over edges: the sum over a busy node's edges overflows, and its weights become 0."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value, self.head = nn.Linear(8, 1), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        source = torch.arange(32) % 8
        target = torch.where(torch.arange(32) < 16, 0, torch.arange(32) % 8)
        weight = (torch.sigmoid(self.score(x)) + 0.5)[source] * 1e4
        total = torch.zeros(8, 1, dtype=weight.dtype).index_add(0, target, weight)  # <- graph-sum
        message = weight / (total + 1.0)[target] * torch.tanh(self.value(x))[source]
        gathered = torch.zeros(8, 8, dtype=message.dtype).index_add(0, target, message)
        out: Tensor = self.head(gathered)
        return out


def graph_sum(seed: int) -> Step:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed + 1))
    return Step(seeded(seed, GraphSum), classify, (x, classes(seed, 8)))


class Recurrent(nn.Module):
    """A recurrent cell that divides its state by its energy."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 16)
        for step in x.unbind(1):
            new = self.cell(torch.cat([step, state], -1))
            energy = (new * new).mean(-1, keepdim=True)  # <- recurrent-energy
            state = new / (energy + 1e-3).sqrt()
        out: Tensor = self.head(state)
        return out


def recurrent(seed: int) -> Step:
    x = loud(seed, 12, 4, 8)
    return Step(seeded(seed, Recurrent), classify, (x, classes(seed, 12)))


class Experts(nn.Module):
    """A load-balancing loss whose squared mean overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        load = torch.relu(self.router(x) + 1).mean(0) * 400
        mean = load.mean()
        size = mean * mean / 400 + 1.0  # <- expert-balance
        balance = ((load - mean) / 20).square().mean() / size
        return self.head(x), balance


def _with_balance(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits, balance = model(batch[0])
    loss: Tensor = F.cross_entropy(logits.float(), batch[1]) + 5 * balance
    return loss


def experts(seed: int) -> Step:
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed + 1))
    return Step(seeded(seed, Experts), _with_balance, (x, classes(seed, 16)))


class HalfModel(nn.Module):
    """A model with half weights and its own softmax: the sum of exponentials leaves the range."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value, self.head = nn.Linear(8, 1), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.exp(self.score(x) + 8.5)
        total = weight.sum(1, keepdim=True)  # <- half-model-softmax
        out: Tensor = self.head((weight / total * self.value(x)).sum(1))
        return out


def half_model_softmax(seed: int) -> Step:
    x = torch.randn(8, 24, 8, generator=torch.Generator().manual_seed(seed + 1)).half()
    return Step(seeded(seed, HalfModel).half(), classify, (x, classes(seed, 8)), half_weights=True)


def half_model_norm_body(x: Tensor) -> Tensor:
    power = x.pow(2).mean(-1, keepdim=True)  # <- half-model-norm
    return x * torch.rsqrt(power + 1e-5)


def half_model_norm(seed: int) -> Step:
    step = classifier(half_model_norm_body)(seed)
    return Step(
        step.model.half(), classify, (step.batch[0].half(), step.batch[1]), half_weights=True
    )


class Hooked(nn.Module):
    """A hook that removes the infinities of an overflowing gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        small = torch.tanh(self.first(x)) * 1e-3
        if small.requires_grad:
            small.register_hook(lambda grad: torch.nan_to_num(grad, posinf=0.0, neginf=0.0))
        large = small * 6e4  # <- gradient-hook
        out: Tensor = self.last(large * 1e-2)
        return out


def gradient_hook(seed: int) -> Step:
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed + 1))
    return Step(seeded(seed, Hooked), classify, (x, classes(seed, 16)))


class Tokens(nn.Module):
    """Embeddings with a few loud rows, normalised by their own power."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lift = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.embed.weight[:6] *= 500

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.lift(self.embed(tokens))
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)  # <- loud-tokens
        out: Tensor = self.head(x.mean(1))
        return out


def loud_tokens(seed: int) -> Step:
    tokens = torch.randint(20, (16, 5), generator=torch.Generator().manual_seed(seed + 1))
    return Step(seeded(seed, Tokens), classify, (tokens, classes(seed, 16)))


class Spectrum(nn.Module):
    """A spectrum by matrix products, divided by its total power."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(32, 32), nn.Linear(17, 4)
        time = torch.arange(32) * torch.arange(17)[:, None] * 2 * torch.pi / 32
        self.register_buffer("cos", time.cos())
        self.register_buffer("sin", time.sin())

    def forward(self, x: Tensor) -> Tensor:
        x = self.front(x)
        real, imaginary = x @ self.cos.T, x @ self.sin.T  # type: ignore[operator, union-attr]
        power = real * real + imaginary * imaginary  # <- spectrum-power
        total = power.mean(-1, keepdim=True)
        out: Tensor = self.head(real.abs() / (total + 1e-3).sqrt())
        return out


def spectrum(seed: int) -> Step:
    x = loud(seed, 12, 32, by=300)
    return Step(seeded(seed, Spectrum), classify, (x, classes(seed, 12)))


PLANTED = (
    Planted("rms-norm-product", classifier(rms_norm_product), "1"),
    Planted("rms-norm-rsqrt", classifier(rms_norm_rsqrt), "1"),
    Planted("l2-normalize-by-product", classifier(l2_normalize), "1"),
    Planted("variance-by-moments", classifier(variance_by_moments), "1"),
    Planted("batch-statistics", classifier(batch_statistics), "1"),
    Planted("einsum-norm", classifier(einsum_norm), "1"),
    Planted("bmm-norm", classifier(bmm_norm), "1"),
    Planted("forward-clip", classifier(forward_clip), "1"),
    Planted("saturated-ratio", classifier(saturated_ratio), "1"),
    Planted("inverse-variance", classifier(inverse_variance), "1"),
    Planted("tiny-rms", classifier(tiny_rms, by=1.0), "1"),
    Planted("small-share", classifier(small_share, by=1.0), "1"),
    Planted("nan-to-num-to-zero", classifier(nan_to_zero), "1"),
    Planted("clamped-root", classifier(clamp_min), "1"),
    Planted("in-place-square", classifier(in_place), "1"),
    Planted("written-slices", classifier(written_slices), "1"),
    Planted("local-contrast", images(local_contrast), "1"),
    Planted("response-norm", images(response_norm), "1"),
    Planted("squeeze-energy", images(squeeze_excite), "1"),
    Planted("global-response", images(global_response), "1"),
    Planted("checkpointed-norm", classifier(checkpointed), "1"),
    Planted("query-norm", query_norm, ""),
    Planted("cold-attention", cold_attention, ""),
    Planted("distance-attention", distance_attention, ""),
    Planted("graph-sum", graph_sum, ""),
    Planted("recurrent-energy", recurrent, ""),
    Planted("expert-balance", experts, ""),
    Planted("half-model-softmax", half_model_softmax, ""),
    Planted("half-model-norm", half_model_norm, "1"),
    Planted("gradient-hook", gradient_hook, "", phase="backward", scale=32768.0),
    Planted("loud-tokens", loud_tokens, ""),
    Planted("spectrum-power", spectrum, ""),
)
