"""Income classifier (census-like table) with gated residual blocks, FP16 autocast."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from f13_data import NUMERIC, CensusRows, Collate


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        a, b = self.fc(self.norm(x)).chunk(2, dim=-1)
        return x + self.out(a * torch.sigmoid(b))


class IncomeNet(nn.Module):
    def __init__(self, n_in, d=32, depth=2):
        super().__init__()
        self.inp = nn.Linear(n_in, d)
        self.blocks = nn.Sequential(*[GatedBlock(d) for _ in range(depth)])
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.blocks(self.inp(x))).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    hit = n = 0
    with torch.no_grad():
        for x, y in loader:
            hit += ((model(x.float()) > 0) == (y > 0.5)).sum().item()
            n += len(y)
    model.train()
    return hit / n


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    train, test = CensusRows(2400, 1), CensusRows(800, 2)
    mean, std = train.stats()
    train_loader = DataLoader(train, args.batch_size, shuffle=True, collate_fn=Collate(mean, std, torch.float16))
    test_loader = DataLoader(test, 200, collate_fn=Collate(mean, std, torch.float32))

    model = IncomeNet(len(NUMERIC))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        for x, y in train_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logit = model(x)
            loss = F.binary_cross_entropy_with_logits(logit.float(), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print(f"final test accuracy {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
