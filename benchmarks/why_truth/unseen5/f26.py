"""Physics-informed net for u'' = f on [0, 1] with stencil derivatives."""
import math
import torch
import torch.nn as nn

torch.manual_seed(26)
SETTINGS = {"h": 2e-2, "points": 128, "iters": 900, "lr": 4e-3, "bc_weight": 50.0,
            "amp": torch.bfloat16}


def exact(x):
    return torch.sin(math.pi * x) + 0.3 * torch.sin(2 * math.pi * x)


def source(x):
    p2 = math.pi ** 2
    return -p2 * torch.sin(math.pi * x) - 1.2 * p2 * torch.sin(2 * math.pi * x)


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(2.0 * x - 1.0)


class Poisson1D:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net = Field()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg["lr"])
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg["iters"])
        self.ends = torch.tensor([[0.0], [1.0]])

    def residual(self, x):
        h = self.cfg["h"]
        up, mid, dn = self.net(torch.cat([x + h, x, x - h])).chunk(3)
        lap = (up - 2.0 * mid + dn) / h ** 2
        return lap - source(x)

    def loss(self, x):
        pde = (self.residual(x).float() ** 2).mean()
        bc = (self.net(self.ends).float() ** 2).mean()
        return pde / 100.0 + self.cfg["bc_weight"] * bc, pde, bc

    def fit(self):
        for it in range(self.cfg["iters"]):
            x = torch.rand(self.cfg["points"], 1)
            with torch.autocast("cpu", dtype=self.cfg["amp"]):
                loss, pde, bc = self.loss(x)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if it % 150 == 0:
                print(f"it {it} pde {pde.item():.3f} bc {bc.item():.5f}")

    @torch.no_grad()
    def rel_l2(self):
        x = torch.linspace(0, 1, 401)[:, None]
        err = self.net(x) - exact(x)
        return (err.norm() / exact(x).norm()).item()


if __name__ == "__main__":
    prob = Poisson1D(SETTINGS)
    prob.fit()
    print(f"val_rel_l2 {prob.rel_l2():.4f}")
