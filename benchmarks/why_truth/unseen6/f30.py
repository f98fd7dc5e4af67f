"""Switch-style mixture of experts on a piecewise regression task."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
HALF = torch.float16


class Expert(nn.Sequential):
    def __init__(self, d, hidden):
        super().__init__(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))


class SwitchLayer(nn.Module):
    def __init__(self, d, experts=4, hidden=64):
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.experts = nn.ModuleList(Expert(d, hidden) for _ in range(experts))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = self.norm(x)
        prob = self.router(h).float().softmax(-1)
        gate, where = prob.max(-1)
        out = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            rows = where == k
            if rows.any():
                out[rows] = expert(h[rows])
        load = F.one_hot(where, prob.size(-1)).float().mean(0)
        balance = prob.size(-1) * (load * prob.mean(0)).sum()
        return x + gate[:, None] * out, balance


class MoE(nn.Module):
    def __init__(self, i, d=32):
        super().__init__()
        self.inp = nn.Linear(i, d)
        self.layers = nn.ModuleList(SwitchLayer(d) for _ in range(2))
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h, aux = self.inp(x), 0.0
        for layer in self.layers:
            h, b = layer(h)
            aux = aux + b
        return self.head(h).squeeze(-1), aux


def sample(n):
    x = torch.randn(n, 6)
    region = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    w = torch.tensor([[1., -1, 0, 2], [0, 2, 1, -1], [-2, 0, 1, 1], [1, 1, -1, 0]])[region]
    return x, (w * x[:, 2:]).sum(1)


def main():
    x, y = sample(8000)
    xv, yv = sample(1500)
    net = MoE(6)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(700):
        idx = torch.randint(0, len(x), (128,))
        with torch.autocast("cpu", dtype=HALF):
            pred, aux = net(x[idx])
        loss = F.mse_loss(pred.float(), y[idx]) + 0.01 * aux
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        pred, _ = net(xv)
    print(f"val_mse {F.mse_loss(pred.float(), yv).item():.4f}")


if __name__ == "__main__":
    main()
