"""Keyword spotting on short waveforms with a learnable-free log-mel front end."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1616)
SR, LEN, N_FFT, HOP, N_MEL = 8000, 2000, 256, 218, 24
CLASSES = ["yes", "no", "up", "down"]


def make_clips(n):
    y = torch.randint(0, len(CLASSES), (n,))
    t = torch.arange(LEN) / SR
    f0 = torch.tensor([300.0, 600.0, 400.0, 900.0])[y][:, None]
    f1 = torch.tensor([600.0, 300.0, 900.0, 400.0])[y][:, None]
    f0 = f0 * (1 + 0.1 * torch.randn(n, 1))
    f1 = f1 * (1 + 0.1 * torch.randn(n, 1))
    sweep = f0 + (f1 - f0) * t[None] / t[-1]
    wav = 0.3 * torch.sin(2 * math.pi * torch.cumsum(sweep / SR, 1))
    wav = wav + 0.02 * torch.randn(n, LEN)
    # clips are zero padded to a common length
    keep = torch.randint(1300, LEN, (n, 1))
    return wav * (torch.arange(LEN)[None] < keep), y


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        k = torch.arange(N_FFT // 2 + 1)[:, None] * torch.arange(N_FFT)[None]
        ang = 2 * math.pi * k / N_FFT
        win = torch.hann_window(N_FFT)
        self.register_buffer("cos", (torch.cos(ang) * win).T.contiguous())
        self.register_buffer("sin", (torch.sin(ang) * win).T.contiguous())
        edges = torch.linspace(0, N_FFT // 2, N_MEL + 2)
        bins = torch.arange(N_FFT // 2 + 1).float()[:, None]
        up = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
        down = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
        self.register_buffer("fb", torch.minimum(up, down).clamp(min=0))

    def forward(self, wav):
        frames = wav.unfold(1, N_FFT, HOP)
        power = (frames @ self.cos) ** 2 + (frames @ self.sin) ** 2
        mel = power @ self.fb
        feat = torch.log(mel + 1e-10)
        mean = feat.mean(dim=(1, 2), keepdim=True)
        std = feat.std(dim=(1, 2), keepdim=True)
        return (feat - mean) / (std + 1e-3)


class KWSNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = LogMel()
        self.hidden = nn.Linear(9 * N_MEL, 48)
        self.head = nn.Linear(48, len(CLASSES))

    def forward(self, wav):
        feats = self.front(wav)
        return self.head(F.relu(self.hidden(feats.flatten(1))))


def main():
    xtr, ytr = make_clips(384)
    xva, yva = make_clips(256)
    net = KWSNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(6):
        perm = torch.randperm(len(xtr))
        total = 0.0
        for i in range(0, len(xtr), 64):
            idx = perm[i:i + 64]
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(xtr[idx]), ytr[idx])
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 6:.4f} scale {scaler.get_scale():g}")
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        acc = (net(xva).argmax(1) == yva).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
