"""A recommender that learns to rank with BPR, with the loss as it is often written.

``log(sigmoid(x) + 1e-8)`` is finite in FP32 for every x. In half precision, 1e-8 and sigmoid(-18) are both 0,
so one badly ranked pair makes the loss of the whole batch infinite. ``nn.Embedding`` starts with weights from
N(0, 1): their products are large, and at first every batch contains such a pair.
"""

import torch
from torch import nn

import halfguard as hg

USERS, ITEMS, TASTES, WIDTH, BATCH = 400, 500, 10, 64, 512


def interactions(seed):
    """Users click items of their own taste, popular ones more often; one in five clicks is held out."""
    noise = torch.Generator().manual_seed(seed)
    user_taste = torch.randint(TASTES, (USERS, 1), generator=noise)
    item_taste = torch.randint(TASTES, (1, ITEMS), generator=noise)
    popularity = 0.2 + 0.8 * torch.rand(ITEMS, generator=noise)
    likes = popularity * torch.where(user_taste == item_taste, 0.8, 0.02)
    clicked = torch.rand(USERS, ITEMS, generator=noise) < likes
    held_out = clicked & (torch.rand(USERS, ITEMS, generator=noise) < 0.2)
    return clicked & ~held_out, held_out


class Graph(nn.Module):
    """Represents a user by an embedding plus the mean of the clicked items."""

    def __init__(self, clicked):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        counts = clicked.sum(1, keepdim=True).clamp(min=1)
        self.register_buffer("share", clicked / counts)

    def forward(self):
        return self.users.weight + self.share @ self.items.weight, self.items.weight


def bpr(model, batch):
    user, liked, other = batch
    users, items = model()
    difference = torch.einsum("bw,bw->b", users[user], items[liked] - items[other])
    return -torch.log(torch.sigmoid(difference) + 1e-8).mean()


def make_batches(clicked, seed):
    noise = torch.Generator().manual_seed(seed)
    pairs = clicked.nonzero()
    while True:
        user, liked = pairs[torch.randint(len(pairs), (BATCH,), generator=noise)].T
        yield user, liked, torch.randint(ITEMS, (BATCH,), generator=noise)


def auc(model, clicked, held_out):
    """Return how often a held-out item ranks above one that was never clicked, averaged over users."""
    users, items = model()
    scores = users.float() @ items.float().T
    rates = []
    for user in range(USERS):
        good = scores[user, held_out[user]]
        rest = scores[user, ~held_out[user] & ~clicked[user]]
        if len(good):
            rates.append((good[:, None] > rest).float().mean())
    return {"auc": torch.stack(rates).mean()}


def job(seed):
    clicked, held_out = interactions(seed)
    model = Graph(clicked)
    return hg.Workload(
        model,
        bpr,
        lambda: make_batches(clicked, seed),
        torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1),
        lambda model: auc(model, clicked, held_out),
    )
