"""A small mixture of experts: tokens are routed to one expert each and gathered again."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)

DIM = 16
EXPERTS = 3
STEPS = 80
BATCH = 48


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts))

    def forward(self, x):
        gate = F.softmax(self.router(x).float(), dim=-1)
        weight, choice = gate.max(dim=-1)
        gathered = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = (choice == e).nonzero().squeeze(-1)
            if rows.numel() == 0:
                continue
            gathered[rows] = expert(x[rows])
        return x + weight.unsqueeze(-1) * gathered


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.moe = MoE(DIM, EXPERTS)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x):
        return self.out(self.moe(self.norm(x)))


def batch(n):
    x = torch.randn(n, DIM)
    region = (x[:, 0] > 0).float()
    y = region * x[:, 1] + (1 - region) * x[:, 2].abs()
    return x, y.unsqueeze(-1)


def main():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        x, y = batch(BATCH)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
