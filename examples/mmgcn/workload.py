"""The ENTRY of the example: ``workload.py:job``, and one function for each variant."""

from functools import partial

import torch
from model import MMGCN
from prepare import load

import halfguard as hg

TOP = 20


def loss_fn(model, batch):
    return model.loss(batch)


def make_batches(data, seed, size=2048):
    noise = torch.Generator().manual_seed(seed)
    pairs, count = data["train"], len(data["genres"])
    while True:
        user, liked = pairs[torch.randint(len(pairs), (size,), generator=noise)].T
        yield user, liked, torch.randint(count, (size,), generator=noise)


@torch.no_grad()
def evaluate(model, data):
    """Return recall and NDCG of the first 20 recommendations, and AUC, over the likes that were held out.

    AUC is the share of pairs, a held-out like and a film that the user did not rate so, in the right order.
    """
    users, items = model()
    scores = users.float() @ items.float().T
    scores[tuple(data["train"].T)] = -torch.inf  # already known
    wanted = torch.zeros_like(scores)
    wanted[tuple(data["test"].T)] = 1
    hits = wanted.gather(1, scores.topk(TOP).indices)
    counts = wanted.sum(1)
    gains = 1 / torch.arange(2, TOP + 2).log2()
    best = torch.cat([torch.zeros(1), gains.cumsum(0)])[counts.clamp(max=TOP).long()]
    some = counts > 0
    ranks = scores.argsort(1).argsort(1) + 1.0  # films that are known already are the lowest
    known = scores.isinf().sum(1)
    others = scores.shape[1] - known - counts
    below = (ranks * wanted).sum(1) - counts * known - counts * (counts + 1) / 2
    return {
        "auc": (below / (counts * others))[some].mean(),
        "recall": (hits.sum(1) / counts)[some].mean(),
        "ndcg": ((hits * gains).sum(1) / best)[some].mean(),
    }


def job(seed, variant="cured", width=32, learning_rate=0.01):
    data = load()
    model = MMGCN(data, width, variant)
    return hg.Workload(
        model,
        loss_fn,
        lambda: make_batches(data, seed),
        torch.optim.Adam(model.parameters(), lr=learning_rate),
        lambda model: evaluate(model, data),
        clip_norm=5.0,
    )


broken = partial(job, variant="broken")
epsilon = partial(job, variant="epsilon")
trained = partial(job, variant="trained")
patched = partial(job, variant="patched")
