"""Continuous-filter graph net (SchNet flavour) that predicts an energy from atom types and positions."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise_sq(pos):
    sq = pos.pow(2).sum(dim=-1)
    d2 = sq[:, :, None] + sq[:, None, :] - 2.0 * torch.bmm(pos, pos.transpose(1, 2))  # guilty
    return d2.clamp_min(0.0)


class RBF(nn.Module):
    def __init__(self, n=16, cutoff=4.0):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.0, cutoff, n))
        self.gamma = 4.0

    def forward(self, d):
        return torch.exp(-self.gamma * (d.unsqueeze(-1) - self.centers) ** 2)


class Interaction(nn.Module):
    def __init__(self, dim, n_rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(n_rbf, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inp = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, h, rbf, mask):
        w = self.filter(rbf) * mask.unsqueeze(-1)
        msg = torch.einsum("bijd,bjd->bid", w, self.inp(h))
        return h + self.out(F.silu(msg))


class MiniSchNet(nn.Module):
    def __init__(self, dim=24, layers=2):
        super().__init__()
        self.embed = nn.Embedding(5, dim)
        self.rbf = RBF()
        self.layers = nn.ModuleList([Interaction(dim, 16) for _ in range(layers)])
        self.energy = nn.Sequential(nn.Linear(dim, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, z, pos):
        d2 = pairwise_sq(pos)
        rbf = self.rbf(torch.sqrt(d2 + 1e-3))
        mask = 1.0 - torch.eye(pos.shape[1])
        h = self.embed(z)
        for layer in self.layers:
            h = layer(h, rbf, mask)
        return self.energy(h).squeeze(-1).sum(dim=-1)


def loss_fn(model, batch):
    pred = model(batch["z"], batch["pos"])
    return F.mse_loss(pred.float(), batch["energy"])


def make():
    torch.manual_seed(17)
    model = MiniSchNet()
    B, N = 8, 10
    local = torch.randn(B, N, 3) * 1.6
    box = torch.tensor([54.0, -34.0, 43.0]) + torch.randn(B, 1, 3)  # position in the simulation box
    batch = {"z": torch.randint(0, 5, (B, N)), "pos": local + box, "energy": torch.randn(B)}
    return model, loss_fn, batch
