import torch
from torch.utils.data import Dataset


class ReviewSet(Dataset):
    """Toy sentiment data: sentiment tokens among fillers, label is the majority."""

    def __init__(self, n, seed, length=16, vocab=64):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(20, vocab, (n, length), generator=g)
        self.labels = torch.randint(0, 2, (n,), generator=g)
        for r in range(n):
            pos = torch.randperm(length - 1, generator=g)[:5]
            self.ids[r, pos] = torch.randint(2, 10, (5,), generator=g) + 8 * self.labels[r]
        self.ids[:, -1] = 1

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}
