"""Pure BF16 weights with Kahan-compensated SGD, so that small updates are not lost."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class KahanSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                st = self.state[p]
                if not st:
                    st["buf"] = torch.zeros_like(p, dtype=torch.float32)
                    st["comp"] = torch.zeros_like(p)
                st["buf"].mul_(g["momentum"]).add_(p.grad.float())
                upd = (-g["lr"] * st["buf"]).to(p.dtype) + st["comp"]
                new = p + upd
                st["comp"] = upd - (new - p)
                p.copy_(new)


def data(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 - x[:, 2] * x[:, 3]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y / 1.6, dtype=torch.float32)


def make_net(width=48):
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--steps", type=int, default=600)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = data(3000, 0)
    xt, yt = data(500, 1)
    dt = torch.bfloat16
    net = make_net().to(dt)
    opt = KahanSGD(net.parameters(), args.lr)
    run = 0.0
    for step in range(1, args.steps + 1):
        i = torch.randint(0, len(x), (48,))
        loss = F.mse_loss(net(x[i].to(dt)).squeeze(-1).float(), y[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        run += loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {run / 50:.4f}")
            run = 0.0
    with torch.no_grad():
        mse = F.mse_loss(net(xt.to(dt)).squeeze(-1).float(), yt).item()
    print(f"final test mse {mse:.4f}")


if __name__ == "__main__":
    main()
