"""Defect detection on grey images (8 bit), patch mixer."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from f25_blocks import MixerBlock, RMSNorm


def plates(n, seed, size=16):
    rng = np.random.default_rng(seed)
    x = rng.normal(175, 18, (n, size, size))
    y = rng.integers(0, 3, n)
    for i in range(n):
        r, c = rng.integers(1, size - 6, 2)
        if y[i] == 1:
            x[i, r, c:c + 5] -= 110
        elif y[i] == 2:
            x[i, r:r + 5, c] -= 110
    return torch.tensor(x.clip(0, 255), dtype=torch.float32), torch.tensor(y)


class PatchMixer(nn.Module):
    def __init__(self, size=16, patch=4, dim=32, depth=2, classes=3):
        super().__init__()
        self.patch = patch
        n = (size // patch) ** 2
        self.embed = nn.Linear(patch * patch, dim)
        self.blocks = nn.Sequential(*[MixerBlock(n, dim) for _ in range(depth)])
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        B, H, W = img.shape
        p = self.patch
        x = img.view(B, H // p, p, W // p, p).permute(0, 1, 3, 2, 4).reshape(B, -1, p * p)
        x = self.blocks(self.embed(x))
        return self.head(self.norm(x).amax(dim=1))


def accuracy(model, x, y, dtype):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        acc = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return acc


def main():
    torch.manual_seed(10)
    dtype = torch.float16
    x, y = plates(900, 0)
    xt, yt = plates(200, 1)
    model = PatchMixer()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    gen = torch.Generator().manual_seed(2)
    for step in range(160):
        i = torch.randint(0, len(x), (24,), generator=gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x[i]), y[i])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    print(f"final test accuracy {accuracy(model, xt, yt, dtype):.4f}")


if __name__ == "__main__":
    main()
