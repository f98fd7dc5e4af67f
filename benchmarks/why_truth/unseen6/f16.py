"""Keyword spotting on synthetic tones with a convolutional spectral front end."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
SR, N, NFFT, HOP, CLASSES = 8000, 2048, 512, 256, 8


def make_split(count, augment):
    y = torch.randint(0, CLASSES, (count,))
    t = torch.arange(N) / SR
    base = 250.0 + 80.0 * y.float()
    f = base[:, None] * (1 + 0.03 * torch.randn(count, 1))
    sweep = 1 + 0.02 * torch.sin(2 * math.pi * 3 * t)[None]
    wav = torch.sin(2 * math.pi * f * t * sweep)
    wav = 0.5 * wav + 0.25 * torch.randn(count, N) * torch.rand(count, 1)
    if augment:
        gain = torch.exp(0.7 * torch.randn(count, 1)).clamp(0.2, 10.0)
        wav = wav * gain
    return wav, y


class SpecFrontEnd(nn.Module):
    def __init__(self):
        super().__init__()
        k = torch.arange(NFFT // 8).float()[:, None]
        n = torch.arange(NFFT).float()[None]
        win = torch.hann_window(NFFT)
        ang = 2 * math.pi * k * n / NFFT
        self.register_buffer("cos", (torch.cos(ang) * win)[:, None])
        self.register_buffer("sin", (torch.sin(ang) * win)[:, None])

    def forward(self, wav):
        re = F.conv1d(wav[:, None], self.cos, stride=HOP)
        im = F.conv1d(wav[:, None], self.sin, stride=HOP)
        power = re.square() + im.square()
        return torch.log(power + 1e-2)


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = SpecFrontEnd()
        self.norm = nn.BatchNorm1d(NFFT // 8)
        self.c1 = nn.Conv1d(NFFT // 8, 48, 3, padding=1)
        self.c2 = nn.Conv1d(48, 48, 3, padding=1)
        self.out = nn.Linear(48, CLASSES)

    def forward(self, wav):
        h = self.norm(self.front(wav))
        h = F.relu(self.c1(h))
        h = F.relu(self.c2(h))
        return self.out(h.mean(-1))


def main():
    xtr, ytr = make_split(900, True)
    xva, yva = make_split(400, True)
    net = Spotter()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu")
    step = 0
    for epoch in range(5):
        for idx in torch.randperm(len(xtr)).split(32):
            with torch.autocast("cpu", dtype=torch.float16):
                logits = net(xtr[idx])
            loss = F.cross_entropy(logits.float(), ytr[idx])
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        pred = torch.cat([net(c).argmax(-1) for c in xva.split(100)])
    print(f"val_acc {(pred == yva).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
