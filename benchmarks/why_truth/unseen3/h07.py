"""Half model with FP32 master weights and a hand-written dynamic loss scaler (skips on overflow)."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def moons(n, seed):
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, np.pi, n)
    y = rng.integers(0, 2, n)
    x = np.where(y[:, None] == 0, np.c_[np.cos(t), np.sin(t)], np.c_[1 - np.cos(t), 0.5 - np.sin(t)])
    x = x + 0.12 * rng.standard_normal((n, 2))
    return torch.tensor(np.c_[x, x ** 2, x[:, :1] * x[:, 1:]], dtype=torch.float32), torch.tensor(y)


class DynamicScaler:
    def __init__(self, scale=2.0 ** 20, factor=2.0, window=80):
        self.scale, self.factor, self.window, self.good = scale, factor, window, 0

    def ok(self, grads):
        fine = all(torch.isfinite(g).all() for g in grads)
        if fine:
            self.good += 1
            if self.good % self.window == 0:
                self.scale *= self.factor
        else:
            self.scale /= self.factor
            self.good = 0
        return fine


class MLP(nn.Sequential):
    def __init__(self, width=48):
        super().__init__(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def main():
    torch.manual_seed(0)
    x, y = moons(1500, 0)
    xt, yt = moons(500, 1)
    model = MLP().half()
    master = [p.detach().float().clone() for p in model.parameters()]
    opt = torch.optim.Adam(master, lr=3e-3)
    scaler = DynamicScaler()
    skipped = 0
    for step in range(300):
        i = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[i].half()).float(), y[i])
        model.zero_grad(set_to_none=True)
        scale = scaler.scale
        (loss * scale).backward()
        grads = [p.grad.float() / scale for p in model.parameters()]
        if scaler.ok(grads):
            for m, g in zip(master, grads):
                m.grad = g
            opt.step()
            with torch.no_grad():
                for p, m in zip(model.parameters(), master):
                    p.copy_(m)
        else:
            skipped += 1
            print(f"step {step} overflow, scale -> {scaler.scale:g}")
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.scale:g} skipped {skipped}")
    with torch.no_grad():
        acc = (model(xt.half()).argmax(-1) == yt).float().mean().item()
    print(f"final test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
