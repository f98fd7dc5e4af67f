"""Graph attention for node classification on a random community graph."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def community_graph(n=240, classes=4, p_in=0.10, p_out=0.01, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    same = y[:, None] == y[None, :]
    prob = torch.where(same, torch.tensor(p_in), torch.tensor(p_out))
    adj = torch.rand(n, n, generator=g) < prob
    adj = adj.triu(1)
    adj = adj | adj.T
    # a few users have not connected to anyone yet
    lonely = torch.randperm(n, generator=g)[:6]
    adj[lonely] = False
    adj[:, lonely] = False
    x = F.one_hot(y, classes).float() + 1.2 * torch.randn(n, classes, generator=g)
    return x, adj, y


class GATLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)
        self.src = nn.Linear(o, 1, bias=False)
        self.dst = nn.Linear(o, 1, bias=False)

    def forward(self, x, adj):
        h = self.lin(x)
        e = F.leaky_relu(self.src(h) + self.dst(h).transpose(0, 1), 0.2)
        e = e.masked_fill(~adj, float("-inf"))
        att = torch.softmax(e, dim=-1)
        return att @ h


class GAT(nn.Module):
    def __init__(self, i, hidden, classes):
        super().__init__()
        self.l1 = GATLayer(i, hidden)
        self.l2 = GATLayer(hidden, classes)

    def forward(self, x, adj):
        return self.l2(F.elu(self.l1(x, adj)), adj)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--amp", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, adj, y = (t.to(device) for t in community_graph())
    train = torch.zeros(len(y), dtype=torch.bool, device=device)
    train[torch.randperm(len(y))[:80]] = True
    model = GAT(x.size(1), 32, 4).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=bool(args.amp))
    for ep in range(args.epochs):
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16, enabled=bool(args.amp)):
            logits = model(x, adj)
            loss = F.cross_entropy(logits[train], y[train])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if (ep + 1) % 15 == 0:
            acc = (logits.argmax(1) == y)[~train].float().mean().item()
            print(f"epoch {ep + 1} loss {loss.item():.4f} test_acc {acc:.3f}")


if __name__ == "__main__":
    main()
