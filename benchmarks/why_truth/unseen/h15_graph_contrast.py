"""Graph contrastive learning: missing features are NaN in the data and imputed, degrees are clamped."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphBatch:
    def __init__(self, x, adj):
        self.x, self.adj = x, adj


def impute(x):
    missing = torch.isnan(x)
    return torch.cat([torch.nan_to_num(x, nan=0.0), missing.to(x.dtype)], -1)


def normalised(adj):
    deg = adj.sum(1).clamp(min=1.0)
    d = deg.rsqrt()
    return d[:, None] * adj * d[None, :]


def sample(g, n=40):
    group = torch.randint(0, 4, (n,), generator=g)
    adj = ((group[:, None] == group[None]) & (torch.rand(n, n, generator=g) < 0.3)).float().triu(1)
    adj = adj + adj.t()
    x = F.one_hot(group, 4).float().repeat(1, 3) + 0.5 * torch.randn(n, 12, generator=g)
    x[torch.rand(n, 12, generator=g) < 0.1] = float("nan")
    return GraphBatch(x, adj)


class Encoder(nn.Module):
    def __init__(self, d=24, width=64, out=16):
        super().__init__()
        self.l1, self.l2 = nn.Linear(d, width), nn.Linear(width, out)
        self.self_loop = nn.Linear(d, out)

    def forward(self, x, adj):
        h = F.relu(adj @ self.l1(x))
        return adj @ self.l2(h) + self.self_loop(x)


def drop_edges(adj, p=0.2):
    keep = (torch.rand_like(adj) > p).float().triu(1)
    return adj * (keep + keep.t())


def info_nce(a, b, t=0.3):
    a, b = F.normalize(a.float(), dim=-1), F.normalize(b.float(), dim=-1)
    return F.cross_entropy(a @ b.t() / t, torch.arange(len(a)))


def main(steps=150):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        graph = sample(g)
        x = impute(graph.x)
        with torch.autocast("cpu", dtype=torch.float16):
            za = model(x, normalised(drop_edges(graph.adj)))
            zb = model(x, normalised(drop_edges(graph.adj)))
        loss = info_nce(za, zb)
        if not torch.isfinite(loss):
            print("bad batch, skipped")
            continue
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
