"""BF16 training with a slow FP32 weight average used for evaluation."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


class EMA:
    def __init__(self, model, decay=0.99):
        self.shadow = copy.deepcopy(model).float().requires_grad_(False)
        self.decay = decay
        self.n = 0

    @torch.no_grad()
    def update(self, model):
        self.n += 1
        d = min(self.decay, (1 + self.n) / (10 + self.n))
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(d).add_(p.float(), alpha=1 - d)


class MasterAdam:
    """FP32 master copies stepped by Adam, written back into the 16-bit model."""

    def __init__(self, model, lr):
        self.live = list(model.parameters())
        self.master = [p.detach().float().clone().requires_grad_() for p in self.live]
        self.opt = torch.optim.Adam(self.master, lr=lr)

    def step(self):
        for m, p in zip(self.master, self.live):
            m.grad = p.grad.float()
            p.grad = None
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.live):
                p.copy_(m)


def spirals(n):
    y = torch.randint(3, (n,))
    r = torch.rand(n)
    a = 4 * r + y * 2.094 + 0.15 * torch.randn(n)
    return torch.stack([r * a.sin(), r * a.cos()], 1), y


def main():
    x, y = spirals(3000)
    vx, vy = spirals(1000)
    net = nn.Sequential(nn.Linear(2, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(),
                        nn.Linear(96, 3)).bfloat16()
    ema, opt = EMA(net), MasterAdam(net, lr=3e-3)
    for step in range(450):
        i = torch.randint(len(x), (128,))
        logits = net(x[i].to(next(net.parameters()).dtype))
        loss = F.cross_entropy(logits.float(), y[i])
        loss.backward()
        opt.step()
        ema.update(net)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        acc = (ema.shadow(vx).argmax(1) == vy).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
