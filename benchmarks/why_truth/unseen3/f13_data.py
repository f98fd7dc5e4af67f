import numpy as np
import torch
from torch.utils.data import Dataset

NUMERIC = ["age", "hours", "education", "capital_gain", "capital_loss"]


class CensusRows(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        age = rng.integers(17, 90, n)
        hours = rng.normal(40, 10, n).clip(1, 99)
        edu = rng.integers(1, 17, n)
        gain = np.where(rng.random(n) < 0.08, rng.lognormal(8.3, 0.7, n), 0).clip(0, 45000)
        gain[rng.random(n) < 0.002] = 99999
        loss = np.where(rng.random(n) < 0.05, rng.normal(1900, 300, n), 0)
        score = 0.04 * (age - 40) + 0.05 * (hours - 40) + 0.35 * (edu - 10) + (gain > 5000) * 3 + (loss > 1500) * 1.5 - 1.0
        self.y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.float32)
        self.x = np.column_stack([age, hours, edu, gain, loss]).astype(np.float32)

    def stats(self):
        return torch.from_numpy(self.x.mean(0)), torch.from_numpy(self.x.std(0))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Collate:
    """stack, convert to the compute dtype, standardise"""

    def __init__(self, mean, std, dtype):
        self.mean, self.std, self.dtype = mean, std, dtype

    def __call__(self, rows):
        x = torch.from_numpy(np.stack([r[0] for r in rows])).to(self.dtype)
        y = torch.from_numpy(np.array([r[1] for r in rows]))
        x = (x - self.mean) / self.std
        return x, y
