"""Keyword spotting on raw 16-bit PCM frames; an RMS-normalised frame encoder."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

rng = np.random.default_rng(8)
torch.manual_seed(8)
FRAMES, HOP, WORDS = 12, 32, 6


def utterances(n):
    """PCM samples in [-32768, 32767], loudness varies by speaker."""
    label = rng.integers(0, WORDS, n)
    tt = np.arange(FRAMES * HOP)
    base = 0.12 + 0.09 * label[:, None]
    glide = 1 + 0.3 * np.sin(2 * np.pi * tt / tt.size + label[:, None])
    phase = rng.uniform(0, 2 * np.pi, (n, 1))
    wave = np.sin(base * glide * tt + phase) + 1.1 * rng.normal(size=(n, tt.size))
    gain = 10 ** rng.uniform(1.0, 3.6, (n, 1))
    pcm = np.clip(np.round(wave * gain), -32768, 32767).astype(np.int16)
    return torch.tensor(pcm), torch.tensor(label)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        ms = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.weight.to(x.dtype)


class Spotter(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.filters = nn.Linear(HOP, dim, bias=False)
        self.norm = RMSNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, WORDS)

    def forward(self, pcm):
        frames = pcm.view(-1, FRAMES, HOP).float()
        h = self.norm(self.filters(frames))
        h = F.relu(self.mix(h * h.sigmoid()))
        h, _ = self.rnn(h)
        return self.out(h.mean(1))


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def main():
    x, y = utterances(1500)
    xv, yv = utterances(500)
    net = Spotter()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=12 * 15)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for epoch in range(12):
        losses = []
        for xb, yb in batches(x, y, 100):
            with torch.autocast("cpu", dtype=torch.float16):
                logits = net(xb)
                loss = F.cross_entropy(logits, yb)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            sched.step()
            losses.append(loss.item())
        if epoch % 3 == 2:
            print(f"epoch {epoch + 1} loss {np.mean(losses):.4f}")
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        acc = (net(xv).argmax(1) == yv).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
