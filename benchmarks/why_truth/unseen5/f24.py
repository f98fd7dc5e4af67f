"""RealNVP density model for 8x8 grayscale patches (dequantised, logit space)."""
import math
import torch
import torch.nn as nn

torch.manual_seed(24)
D, LN2 = 64, math.log(2.0)


def patches(n):
    """Smooth random gradients with a few saturated highlights, 8-bit."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
    a, b, c = torch.randn(3, n, 1, 1)
    img = 128 + 40 * (a * xx + b * yy) + 25 * c + 4 * torch.randn(n, 8, 8)
    return img.round().clamp(0, 255).reshape(n, D).to(torch.uint8)


def preprocess(batch_u8, eps=1e-6):
    x = (batch_u8.float() + torch.rand(batch_u8.shape)) / 256.0
    x = x.half()
    x = x.clamp(eps, 1.0 - eps)
    z = torch.log(x) - torch.log1p(-x)
    logdet = -(torch.log(x) + torch.log1p(-x)).float().sum(1)
    return z, logdet


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        mask = (torch.arange(D) % 2 == flip).float()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(D, 96), nn.ReLU(), nn.Linear(96, 2 * D))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, z):
        s, t = self.net(z * self.mask).float().chunk(2, dim=1)
        s = 1.5 * torch.tanh(s) * (1 - self.mask)
        t = t * (1 - self.mask)
        return z * torch.exp(s) + t, s.sum(1)


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2) for i in range(depth))

    def bits_per_dim(self, u8):
        z, logdet = preprocess(u8)
        z = z.float()
        for layer in self.layers:
            z, ld = layer(z)
            logdet = logdet + ld
        logp = (-0.5 * z ** 2 - 0.5 * math.log(2 * math.pi)).sum(1) + logdet
        return -logp.mean() / (D * LN2) + 8.0


def main():
    train, val = patches(4000), patches(300)
    flow = Flow()
    opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for step in range(160):
        idx = torch.randint(len(train), (64,))
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=True):
            loss = flow.bits_per_dim(train[idx])
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        opt.step()
        if step % 20 == 0:
            print(f"step {step} bpd {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        print(f"val_bpd {flow.bits_per_dim(val).item():.4f}")


if __name__ == "__main__":
    main()
