"""Reading and writing text: a reader of words, a distilled student, a decoder with its own norm."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class WordReader(nn.Module):
    """Reads six letters from a strip of a picture, one per column; no CTC."""

    def __init__(self, letters: int = 20, height: int = 12) -> None:
        super().__init__()
        self.columns, self.mix = nn.Linear(height, 64), nn.Linear(64, 64)
        self.letters = nn.Linear(64, letters)

    def forward(self, strip: Tensor) -> Tensor:
        return self.letters(torch.relu(self.mix(torch.relu(self.columns(strip)))))


def letter_loss(model: nn.Module, batch: Batch) -> Tensor:
    strip, word = batch
    logits = model(strip)
    probability = F.softmax(logits, dim=-1).type_as(logits)
    chosen = probability.gather(-1, word[..., None])
    return -torch.log(chosen + 1e-8).mean()


def reader_log_softmax(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = WordReader()
    shapes = 255 * torch.rand(20, 12)
    batches = []
    for _ in range(50):
        word = torch.randint(20, (24, 6))
        batches.append((shapes[word] + 20 * torch.randn(24, 6, 12), word))
    return Workload(
        model, letter_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class Distilled(nn.Module):
    """A small student and a large frozen teacher over the same words."""

    def __init__(self, words: int = 50, classes: int = 12) -> None:
        super().__init__()
        self.embed, self.student = nn.EmbeddingBag(words, 32), nn.Linear(32, classes)
        self.teacher_embed = nn.EmbeddingBag(words, 64)
        self.teacher = nn.Linear(64, classes)
        nn.init.normal_(self.teacher.weight, std=5.0)
        self.teacher_embed.requires_grad_(False)
        self.teacher.requires_grad_(False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(self.embed(ids)), self.teacher(self.teacher_embed(ids))


def distillation(model: nn.Module, ids: Tensor) -> Tensor:
    student, teacher = model(ids)
    own = torch.softmax(student, dim=-1).to(student.dtype)
    surprise = torch.log(own) - F.log_softmax(teacher, dim=-1)
    return (own * surprise).sum(-1).mean()


def distilled_kl(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Distilled()
    batches = [torch.randint(50, (32, 6)) for _ in range(50)]
    trained = [p for p in model.parameters() if p.requires_grad]
    return Workload(model, distillation, batches, torch.optim.Adam(trained, lr=5e-2), seed=seed)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        variance = (x * x).mean(-1, keepdim=True)
        return self.weight * x / torch.sqrt(variance + self.eps)


class LogReader(nn.Module):
    """A decoder over lines of a log: numbers, with a linear embedding."""

    causal: Tensor

    def __init__(self, features: int = 8, width: int = 32) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(features, width), RMSNorm(width)
        self.mix, self.mlp = nn.Linear(12, 12, bias=False), nn.Linear(width, width)
        self.head = nn.Linear(width, features)
        self.register_buffer("causal", torch.ones(12, 12).tril())

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.embed(x))
        past = self.mix.weight * self.causal
        h = h + torch.tanh(past.to(h.dtype) @ h)
        return self.head(torch.relu(self.mlp(h)))


def next_line(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x)[:, :-1].float(), (x / x.norm(dim=-1, keepdim=True))[:, 1:])


def log_reader_rms(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = LogReader()
    turn = torch.linalg.matrix_exp(0.5 * (torch.randn(8, 8)).triu(1))
    turn = torch.linalg.qr(turn)[0]
    batches = []
    for _ in range(50):
        line = 900 * torch.randn(24, 8)
        lines = [line]
        for _ in range(11):
            lines.append(lines[-1] @ turn)
        batches.append(torch.stack(lines, 1))
    return Workload(
        model, next_line, batches, torch.optim.AdamW(model.parameters(), lr=5e-3), seed=seed
    )


class LinearAttention(nn.Module):
    """Attention by sums over all tokens: no softmax, one pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        memory = k.transpose(1, 2) @ v
        norm = k.float().sum(1)
        mixed = (q @ memory).float() / (q.float() * norm[:, None]).sum(-1, keepdim=True)
        return self.out(mixed)


class LongReader(nn.Module):
    def __init__(self, features: int = 6, width: int = 16) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(features, width), LinearAttention(width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(self.norm(h + self.attention(h)).mean(1))


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def linear_attention_long(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = LongReader()
    centres = 20 * torch.randn(3, 6)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (8,))
        batches.append((centres[y][:, None] + 40 * torch.randn(8, 400, 6), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=3e-3), seed=seed
    )
