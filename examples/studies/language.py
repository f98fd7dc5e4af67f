"""A small character language model, trained on Python's own help pages."""

import functools
from pydoc_data import topics

import torch
from torch import nn
from torch.nn import functional

import halfguard as hg

WIDTH, HEADS, CONTEXT, BATCH = 64, 4, 64, 16


@functools.cache
def text():
    """Return the help pages as numbers below 96; the last tenth is for validation."""
    joined = "\n".join(page for _, page in sorted(topics.topics.items()))
    letters = torch.tensor([min(max(ord(letter) - 31, 0), 95) for letter in joined])
    cut = len(letters) * 9 // 10
    return letters[:cut], letters[cut:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.attention(self.first(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        seen = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class CharacterModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(96, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96)

    def forward(self, letters):
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def pieces(letters, count, seed):
    noise = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(letters) - CONTEXT - 1, (BATCH,), generator=noise)
        yield letters[starts[:, None] + torch.arange(CONTEXT + 1)]


def next_letter(model, batch):
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def perplexity(model):
    losses = [next_letter(model, batch) for batch in pieces(text()[1], 40, seed=1)]
    return {"perplexity": torch.stack(losses).float().mean().exp()}


def job(seed):
    model = CharacterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = functools.partial(pieces, text()[0], 500, seed)
    return hg.Workload(model, next_letter, batches, optimizer, perplexity)
