"""GIN on a citation-like graph with hubs: node classification."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N, CLASSES = 500, 4


def hub_graph(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, N)
    src, dst = [], []
    pop = rng.zipf(1.6, N).clip(1, 3000).astype(float)
    for i in range(N):
        same = np.where(y == y[i])[0]
        pool = same if rng.random() < 0.9 else np.arange(N)
        p = pop[pool] / pop[pool].sum()
        for j in rng.choice(pool, 5, p=p):
            if j != i:
                src += [i, j]
                dst += [j, i]
    words = rng.poisson(6.0, (N, 16)) + 14.0 * (np.arange(16)[None] // 4 == y[:, None]) * (rng.random((N, 16)) < 0.35)
    return torch.tensor(words * 40, dtype=torch.float32), torch.tensor([src, dst]), torch.tensor(y)


class GINConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.lin1 = nn.Linear(d_in, d_out)
        self.bn = nn.BatchNorm1d(d_out)
        self.lin2 = nn.Linear(d_out, d_out)

    def forward(self, x, edge):
        msg = x.index_select(0, edge[0])
        agg = torch.zeros_like(x).index_add(0, edge[1], msg)
        h = self.lin1((1 + self.eps) * x + agg)
        return self.lin2(F.relu(self.bn(h)))


class GIN(nn.Module):
    def __init__(self, d_in=16, d=24, classes=CLASSES):
        super().__init__()
        self.enc = nn.Linear(d_in, d)
        self.c1 = GINConv(d, d)
        self.c2 = GINConv(d, d)
        self.cls = nn.Linear(2 * d, classes)

    def forward(self, x, edge):
        h0 = F.relu(self.enc(x))
        h1 = F.relu(self.c1(h0, edge))
        h2 = F.relu(self.c2(h1, edge))
        return self.cls(torch.cat([h1, h2], dim=-1))


def main():
    torch.manual_seed(2)
    x, edge, y = hub_graph()
    print(f"{edge.size(1)} edges, max degree {edge[1].bincount().max().item()}")
    train = torch.rand(N) < 0.5
    model = GIN()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for epoch in range(60):
        model.train()
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, edge)
            loss = F.cross_entropy(logits[train].float(), y[train])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    with torch.no_grad():
        acc = (model(x, edge)[~train].argmax(-1) == y[~train]).float().mean().item()
    print(f"final test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
