"""Super-resolution toy: half network, FP32 master weights, a fixed loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

LOSS_SCALE = 2.0 ** 24


class SRNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.head = nn.Conv2d(1, c, 3, padding=1)
        self.body = nn.Conv2d(c, c, 3, padding=1)
        self.tail = nn.Conv2d(c, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        h = F.relu(self.head(x))
        h = h + F.relu(self.body(h))
        return self.shuffle(self.tail(h))


class MasterSGD:
    """FP32 copies of half parameters."""

    def __init__(self, model, lr):
        self.model = model
        self.master = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.master, lr=lr, momentum=0.9)

    def step(self):
        for m, p in zip(self.master, self.model.parameters()):
            m.grad = p.grad.float() / LOSS_SCALE
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.model.parameters()):
                p.copy_(m)
                p.grad = None


def images(n, g):
    coarse = torch.rand(n, 1, 4, 4, generator=g)
    hi = F.interpolate(coarse, size=16, mode="bicubic", align_corners=False)
    lo = F.avg_pool2d(hi, 2)
    return lo, hi


def main(steps=100):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = SRNet().half()
    optimizer = MasterSGD(model, lr=0.05)
    for step in range(steps):
        lo, hi = images(8, g)
        pred = model(lo.half())
        loss = F.mse_loss(pred.float(), hi)
        (loss * LOSS_SCALE).backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.5f}")


if __name__ == "__main__":
    main()
