"""Half network with FP32 master weights and a home-made dynamic loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicScale:
    def __init__(self, start=2.0 ** 22, window=50):
        self.value, self.window, self.good = start, window, 0

    def update(self, overflow):
        if overflow:
            self.value /= 2
            self.good = 0
        else:
            self.good += 1
            if self.good % self.window == 0:
                self.value *= 2


class HalfTrainer:
    def __init__(self, model, lr):
        self.model = model.half()
        self.params = list(self.model.parameters())
        self.master = [p.detach().float().clone() for p in self.params]
        self.opt = torch.optim.Adam(self.master, lr=lr)
        self.scale = DynamicScale()
        self.skipped = 0

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x.half()).float(), y)
        for p in self.params:
            p.grad = None
        (loss * self.scale.value).backward()
        overflow = not all(torch.isfinite(p.grad).all() for p in self.params)
        if not overflow:
            for m, p in zip(self.master, self.params):
                m.grad = p.grad.float() / self.scale.value
            nn.utils.clip_grad_norm_(self.master, 1.0)
            self.opt.step()
            with torch.no_grad():
                for m, p in zip(self.master, self.params):
                    p.copy_(m)
        self.skipped += overflow
        self.scale.update(overflow)
        return loss.item()


def moons(n, g):
    y = torch.randint(0, 2, (n,), generator=g)
    t = torch.rand(n, generator=g) * 3.14159
    x = torch.stack([t.cos() + y, (1 - 2 * y) * t.sin() + 0.4 * y], -1)
    return x + 0.08 * torch.randn(n, 2, generator=g), y


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 2))
    trainer = HalfTrainer(net, lr=3e-3)
    for step in range(250):
        loss = trainer.step(*moons(64, g))
        if step % 25 == 0:
            print(f"step {step} loss {loss:.4f} scale {trainer.scale.value:g} skipped {trainer.skipped}")


if __name__ == "__main__":
    main()
