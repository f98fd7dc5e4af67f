"""Intent classification from bags of words. Labels come from a 1-based annotation tool."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

INTENTS = ["greet", "bye", "order", "cancel", "refund", "track", "human"]


@dataclass
class Config:
    lr: float = 5e-3
    epochs: int = 3
    batch_size: int = 32
    vocab: int = 300


class IntentData(Dataset):
    def __init__(self, cfg, n=900, seed=0):
        g = torch.Generator().manual_seed(seed)
        weights = torch.rand(len(INTENTS), cfg.vocab, generator=g) ** 6
        # annotation export: 1 is 'greet'; 'human' was added late and is rare
        freq = torch.tensor([20.0, 20, 20, 20, 10, 10, 0.8])
        self.raw = torch.multinomial(freq, n, replacement=True, generator=g) + 1
        self.tokens = torch.multinomial(weights[self.raw - 1], 8, replacement=True, generator=g)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        return self.tokens[i], self.raw[i]


class BagModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bag = nn.EmbeddingBag(cfg.vocab, 32, mode="mean")
        self.out = nn.Linear(32, len(INTENTS))

    def forward(self, tokens):
        return self.out(self.bag(tokens))


def fit(cfg):
    torch.manual_seed(0)
    loader = DataLoader(IntentData(cfg), batch_size=cfg.batch_size, shuffle=True)
    model = BagModel(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for epoch in range(cfg.epochs):
        total = 0.0
        for tokens, label in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(tokens)
                loss = F.cross_entropy(logits, label)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=Config.lr)
    parser.add_argument("--epochs", type=int, default=Config.epochs)
    a = parser.parse_args()
    fit(Config(lr=a.lr, epochs=a.epochs))
