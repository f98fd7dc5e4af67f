"""GCN with isolated nodes and hubs: degree clamp, float32 aggregation and norm, FP16 matmuls."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N = 500


def graph(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, N)
    src, dst = [], []
    for i in range(N):
        if i % 25 == 0:
            continue
        pool = np.where(y == y[i])[0] if rng.random() < 0.85 else np.arange(N)
        for j in rng.choice(pool[pool % 25 != 0], 3):
            src += [i, j]
            dst += [j, i]
    hub = 7
    for j in range(1, N, 3):
        if j % 25:
            src.append(j)
            dst.append(hub)
    x = rng.standard_normal((N, 12)) + 0.9 * np.eye(12)[y]
    x[::25] *= 0.0
    return torch.tensor(x * 30, dtype=torch.float32), torch.tensor([src, dst]), torch.tensor(y)


class GCN(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.l1, self.l2, self.out = nn.Linear(12, d), nn.Linear(d, d), nn.Linear(d, 3)

    @staticmethod
    def prop(h, edge):
        h = h.float()
        deg = torch.bincount(edge[1], minlength=N).clamp(min=1).float()
        s = torch.zeros_like(h).index_add(0, edge[1], h[edge[0]])
        return h + s / deg[:, None]

    @staticmethod
    def unit(h):
        return h / (h.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()

    def forward(self, x, edge):
        h = F.relu(self.l1(self.unit(self.prop(x, edge))))
        h = F.relu(self.l2(self.unit(self.prop(h, edge))))
        return self.out(h)


def main():
    torch.manual_seed(0)
    x, edge, y = graph()
    deg = torch.bincount(edge[1], minlength=N)
    print(f"isolated {int((deg == 0).sum())} max degree {int(deg.max())}")
    train = torch.rand(N) < 0.5
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(60):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, edge)
        loss = F.cross_entropy(logits.float()[train], y[train])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if epoch % 6 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    test = ~train & (deg > 0)
    with torch.no_grad():
        acc = (model(x, edge).argmax(-1)[test] == y[test]).float().mean().item()
    print(f"final test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
