"""The networks of the matrix, and the batches to train them with.

Every layer has a matrix, a bias and an embedding, so that every optimizer finds something to train in every
part of a network. The embedding lies below the matrix: its gradients pass through half precision too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.checkpoint import checkpoint

FEATURES, WIDTH, CLASSES, TOKENS, ROWS = 16, 32, 4, 8, 8

Batch = dict[str, Tensor]


class Layer(nn.Module):
    """A linear layer over features and the embedding of a token."""

    def __init__(self, ins: int, outs: int, *, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, ins, sparse=sparse)
        self.linear = nn.Linear(ins, outs)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.linear(x + self.embed(tokens))


class Classifier(nn.Module):
    """Three layers with dropout; ``checkpointed`` computes the middle again in the backward pass."""

    def __init__(
        self, *, sparse: bool, checkpointed: bool = False, batchnorm: bool = False
    ) -> None:
        super().__init__()
        self.first = Layer(FEATURES, WIDTH, sparse=sparse)
        self.norm = nn.BatchNorm1d(WIDTH) if batchnorm else nn.LayerNorm(WIDTH)
        self.middle = Layer(WIDTH, WIDTH, sparse=sparse)
        self.drop = nn.Dropout(0.1)
        self.last = Layer(WIDTH, CLASSES, sparse=sparse)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.first(x, tokens)))
        if self.checkpointed:
            h = checkpoint(self._block, h, tokens, use_reentrant=False)
        else:
            h = self._block(h, tokens)
        return self.last(h, tokens)

    def _block(self, h: Tensor, tokens: Tensor) -> Tensor:
        return h + self.drop(torch.relu(self.middle(h, tokens)))


class Adapted(nn.Module):
    """A frozen half base with low-rank adapters and trained prompts in FP32, as LoRA has."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.prompt = nn.Embedding(TOKENS, FEATURES, sparse=sparse)
        self.base = nn.Linear(FEATURES, CLASSES).half().requires_grad_(False)
        self.down = nn.Linear(FEATURES, 32, bias=False)
        self.up = nn.Linear(32, CLASSES, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        h = x + self.prompt(tokens)
        return self.base(h) + self.up(self.down(h))


class Recurrent(nn.Module):
    """A recurrent network that continues with the hidden state of its last batch."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.read = Layer(FEATURES, WIDTH, sparse=sparse)
        self.recur = nn.Linear(WIDTH, WIDTH)
        self.last = Layer(WIDTH, CLASSES, sparse=sparse)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), WIDTH) if self.hidden is None else self.hidden
        for step in range(3):
            hidden = torch.tanh(self.read(x.roll(step, 1), tokens) + self.recur(hidden))
        self.hidden = hidden.detach()
        return self.last(hidden, tokens)


class Gan(nn.Module):
    """A generator and a critic."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.generator = Layer(FEATURES, FEATURES, sparse=sparse)
        self.critic = Layer(FEATURES, 1, sparse=sparse)

    def critic_loss(self, batch: Batch) -> Tensor:
        x, tokens = batch["x"], batch["tokens"]
        made = self.critic(self.generator(x, tokens).detach(), tokens)
        losses = softplus(made.float()) + softplus(-self.critic(x, tokens).float())
        return losses.mean() * batch["weight"]

    def generator_loss(self, batch: Batch) -> Tensor:
        made = self.critic(self.generator(batch["x"], batch["tokens"]), batch["tokens"])
        return softplus(-made.float()).mean() * batch["weight"]


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"], batch["tokens"])
    return cross_entropy(logits.float(), batch["y"]) * batch["weight"]


HEALTHY, OVERFLOWING = (
    1.0,
    1024.0,
)  # weights of a batch: the gradients of the second leave half's range


def make_batch(seed: int) -> Batch:
    """Return a learnable batch: the class is the largest of four features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    tokens = torch.randint(TOKENS, (ROWS,), generator=generator)
    y = x[:, :CLASSES].argmax(1)
    return {"x": x, "tokens": tokens, "y": y, "weight": torch.tensor(HEALTHY)}
