"""Sound source localisation: microphone-array features to an occupancy heatmap."""
import torch
import torch.nn as nn

torch.manual_seed(17)
CFG = dict(grid=36, sigma=2.0, mics=10, batch=64, epochs=10, lr=3e-3, w_heat=0.02, n_train=1536, n_val=256)


def simulate(n, cfg, mic_xy):
    g = cfg["grid"]
    src = torch.rand(n, 2) * (g - 6) + 3
    dist = torch.cdist(src, mic_xy)
    feats = torch.cat([dist / g, 4.0 / (1.0 + dist)], 1)
    feats = feats + 0.01 * torch.randn_like(feats)
    yy, xx = torch.meshgrid(torch.arange(g).float(), torch.arange(g).float(), indexing="ij")
    d2 = (xx - src[:, 0, None, None]) ** 2 + (yy - src[:, 1, None, None]) ** 2
    return feats, torch.exp(-d2 / (2 * cfg["sigma"] ** 2)), src


class Localizer(nn.Module):
    def __init__(self, cfg, hidden=48):
        super().__init__()
        self.grid = cfg["grid"]
        self.trunk = nn.Sequential(
            nn.Linear(2 * cfg["mics"], hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
        )
        self.head = nn.Linear(hidden, self.grid ** 2)
        nn.init.constant_(self.head.bias, -4.0)

    def forward(self, x):
        return torch.sigmoid(self.head(self.trunk(x))).view(-1, self.grid, self.grid)


def hit_rate(net, feats, src, thr=3.0):
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        idx = net(feats).float().flatten(1).argmax(1)
    net.train()
    xy = torch.stack([idx % net.grid, idx // net.grid], 1).float()
    return ((xy - src).norm(dim=1) < thr).float().mean().item()


def train(cfg):
    mic_xy = torch.rand(cfg["mics"], 2) * cfg["grid"]
    x, heat, _ = simulate(cfg["n_train"], cfg, mic_xy)
    vx, _, vsrc = simulate(cfg["n_val"], cfg, mic_xy)
    net = Localizer(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"], eps=1e-12)
    mse = nn.MSELoss()
    for epoch in range(cfg["epochs"]):
        running, steps = 0.0, 0
        for b in torch.randperm(len(x)).split(cfg["batch"]):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = cfg["w_heat"] * mse(net(x[b]), heat[b])
            loss.backward()
            opt.step()
            running += loss.item()
            steps += 1
        print(f"epoch {epoch}: loss {running / steps:.3e} hit {hit_rate(net, vx, vsrc):.3f}")
    return hit_rate(net, vx, vsrc)


if __name__ == "__main__":
    print(f"val_hit {train(CFG):.4f}")
