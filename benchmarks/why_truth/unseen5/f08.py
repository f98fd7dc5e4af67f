"""Keypoint localisation on noisy heat frames with a small mixer network, fp16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
SIDE, POINTS = 12, 2


def frames(n):
    pos = torch.rand(n, POINTS, 2) * 0.8 + 0.1
    grid = (torch.arange(SIDE) + 0.5) / SIDE
    img = torch.zeros(n, SIDE, SIDE)
    for k in range(POINTS):
        dy = (grid[None, :, None] - pos[:, k, 0, None, None]) ** 2
        dx = (grid[None, None, :] - pos[:, k, 1, None, None]) ** 2
        img += (1.0 - 2.0 * k) * torch.exp(-(dx + dy) / 0.02)
    return img + 0.1 * torch.randn(n, SIDE, SIDE), pos.flatten(1)


class MixerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rows = nn.Linear(SIDE, SIDE)
        self.norm = nn.LayerNorm(width)
        self.chan = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h):
        h = h + self.rows(h.transpose(1, 2)).transpose(1, 2)
        return h + self.chan(self.norm(h))


class Localiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(SIDE, width)
        self.block = MixerBlock(width)
        self.out = nn.Linear(SIDE * width, 2 * POINTS)

    def forward(self, img):
        return self.out(self.block(self.embed(img)).flatten(1))


def mixed(enabled=True):
    return torch.autocast("cpu", dtype=torch.float16, enabled=enabled)


class Loop:
    def __init__(self, model, lr=2e-3, batch=64):
        self.model, self.batch = model, batch
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def update(self, loss):
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()

    @mixed()
    def epoch(self, x, y):
        total, n = 0.0, 0
        for idx in torch.randperm(len(x)).split(self.batch):
            pred = self.model(x[idx])
            loss = F.mse_loss(pred.float(), y[idx])
            self.update(loss)
            total, n = total + loss.item(), n + 1
        return total / n

    @mixed()
    @torch.no_grad()
    def error(self, x, y):
        return (self.model(x).float() - y).view(-1, POINTS, 2).norm(dim=-1).mean().item()


def main():
    x, y = frames(2048)
    xv, yv = frames(400)
    loop = Loop(Localiser())
    for e in range(8):
        print(f"epoch {e} mse {loop.epoch(x, y):.5f} scale {loop.scaler.get_scale():.4g}")
    print(f"val_dist {loop.error(xv, yv):.4f}")


if __name__ == "__main__":
    main()
