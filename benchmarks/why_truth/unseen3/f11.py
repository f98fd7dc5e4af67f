"""Concrete feature selection: choose 6 of 60 gene features and regress the response from them."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from f11_quant import GumbelSelector


def genes(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 60)).astype(np.float32)
    w = np.array([1.5, -1.3, 1.2, 1.0, -1.1, 1.4])
    y = x[:, [3, 11, 24, 37, 45, 58]] @ w + 0.1 * rng.standard_normal(n)
    return torch.from_numpy(x), torch.tensor(y / 3.1, dtype=torch.float32)


class SelectRegress(nn.Module):
    def __init__(self, n=60, k=12, width=32):
        super().__init__()
        self.select = GumbelSelector(n, k)
        self.net = nn.Sequential(nn.Linear(k, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(self.select(x)).squeeze(-1)


class MasterAdam:
    """Adam on FP32 copies of the BF16 parameters."""

    def __init__(self, module, lr):
        self.params = list(module.parameters())
        self.master = [p.detach().clone().float() for p in self.params]
        self.opt = torch.optim.Adam(self.master, lr=lr)

    def step(self):
        for m, p in zip(self.master, self.params):
            m.grad = p.grad.float()
            p.grad = None
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.params):
                p.copy_(m)


def test_mse(model, x, y, dtype):
    model.eval()
    with torch.no_grad():
        mse = F.mse_loss(model(x.to(dtype)).float(), y).item()
    model.train()
    return mse


def main():
    torch.manual_seed(13)
    dtype = torch.bfloat16
    x, y = genes(2000, 0)
    xt, yt = genes(500, 1)
    model = SelectRegress().to(dtype)
    opt = MasterAdam(model, lr=1e-2)
    gen = torch.Generator().manual_seed(1)
    for step in range(1000):
        idx = torch.randint(0, len(x), (64,), generator=gen)
        pred = model(x[idx].to(dtype))
        loss = F.mse_loss(pred.float(), y[idx])
        loss.backward()
        opt.step()
        model.select.anneal()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f} hard-select test mse {test_mse(model, xt, yt, dtype):.4f}")
    print(f"final test mse {test_mse(model, xt, yt, dtype):.4f}")


if __name__ == "__main__":
    main()
