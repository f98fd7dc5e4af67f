"""Equivariant message passing with learned coordinate updates for cluster energies."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
ATOMS = 8


def clusters(n):
    pos = torch.randn(n, ATOMS, 3) * 1.3
    z = torch.randint(0, 3, (n, ATOMS))
    q = torch.tensor([0.5, 1.0, -0.8])[z]
    i, j = torch.triu_indices(ATOMS, ATOMS, 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    e = (q[:, i] * q[:, j] * torch.exp(-r)).sum(-1) * 2
    return pos, z, e


class EGLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim + 1, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.coord = nn.Linear(dim, 1, bias=False)
        self.node = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        nn.init.normal_(self.coord.weight, std=1e-2)

    def forward(self, h, x):
        b, n, d = h.shape
        diff = x[:, :, None] - x[:, None]
        dist = diff.pow(2).sum(-1, keepdim=True).sqrt()
        off = (~torch.eye(n, dtype=torch.bool))[None, :, :, None]
        pair = torch.cat([h[:, :, None].expand(b, n, n, d), h[:, None].expand(b, n, n, d), dist], -1)
        m = torch.where(off, self.edge(pair), 0.0)
        x = x + (diff * self.coord(m)).mean(2)
        h = h + self.node(torch.cat([h, m.sum(2).to(h.dtype)], -1))
        return h, x


class EnergyModel(nn.Module):
    def __init__(self, dim=32, layers=2):
        super().__init__()
        self.emb = nn.Embedding(3, dim)
        self.layers = nn.ModuleList(EGLayer(dim) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, pos, z):
        h, x = self.emb(z), pos
        for layer in self.layers:
            h, x = layer(h, x)
        return self.out(h).sum((1, 2))


def fit(steps=260, amp=torch.bfloat16):
    pos, z, e = clusters(2400)
    vp, vz, ve = clusters(400)
    model = EnergyModel()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        idx = torch.randint(0, len(pos), (64,))
        with torch.autocast("cpu", dtype=amp):
            pred = model(pos[idx], z[idx])
        loss = F.mse_loss(pred.float(), e[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=amp):
        pred = model(vp, vz).float()
    return (pred - ve).abs().mean().item()


print(f"val_mae {fit():.4f}")
