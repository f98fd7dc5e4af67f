"""Beam surrogate trained in two sessions with a checkpoint in between."""
import io
import torch
import torch.nn as nn
import torch.nn.functional as F



def beams(n, seed):
    """Tip displacement (metres) of a cantilever from load, span, stiffness and two section ratios."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=g) * 2 - 1
    load, span = 1 + 0.6 * x[:, 0], 1 + 0.3 * x[:, 1]
    stiff = 1.2 + 0.6 * x[:, 2]
    tip = 4e-3 * load * span ** 3 / stiff * (1 + 0.3 * torch.sin(3 * x[:, 3]) * x[:, 4])
    return x, (tip - 4e-3)[:, None]


def surrogate(width=64):
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                         nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def compact(obj):
    if torch.is_tensor(obj):
        return obj.half() if obj.dim() > 0 and obj.is_floating_point() else obj
    if isinstance(obj, dict):
        return {k: compact(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(compact(v) for v in obj)
    return obj


class Session:
    def __init__(self, data, total):
        self.data = data
        self.model = surrogate()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3, eps=1e-10)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: max(0.02, 1 - s / total))
        self.scaler = torch.amp.GradScaler("cpu")
        self.step = 0

    def state(self):
        return {"model": self.model.state_dict(), "opt": self.opt.state_dict(),
                "sched": self.sched.state_dict(), "scaler": self.scaler.state_dict(), "step": self.step}

    def save(self, f):
        torch.save(compact(self.state()), f)

    def load(self, f):
        s = torch.load(f)
        for name in ("model", "opt", "sched", "scaler"):
            getattr(self, name).load_state_dict(s[name])
        self.step = s["step"]

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(x)
        return F.mse_loss(pred.float(), y)

    def train(self, until):
        x, y = self.data
        while self.step < until:
            idx = torch.randint(0, len(x), (128,))
            loss = self.loss(x[idx], y[idx])
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.sched.step()
            if self.step % 100 == 0:
                print(f"step {self.step} loss {loss.item():.3e}")
            self.step += 1


def main():
    torch.manual_seed(9)
    data, (vx, vy) = beams(6000, 1), beams(1000, 2)
    first = Session(data, 1200)
    first.train(900)
    blob = io.BytesIO()
    first.save(blob)
    blob.seek(0)
    second = Session(data, 1200)
    second.load(blob)
    second.train(1200)
    with torch.no_grad():
        rel = second.loss(vx, vy).sqrt() / vy.std()
    print(f"val_rel_rmse {rel.item():.4f}")


if __name__ == "__main__":
    main()
