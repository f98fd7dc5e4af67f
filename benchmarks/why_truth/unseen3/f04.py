"""Speech-like denoiser trained with SI-SDR on short clips."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SR, DUR = 2000, 1.0


class NoisyClips(Dataset):
    """Clips are kept in float16: the real corpus would not fit in RAM otherwise."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(int(SR * DUR)) / SR
        clean, noisy = [], []
        for i in range(n):
            f0 = rng.uniform(60, 240)
            s = sum(rng.uniform(0.3, 1.0) / k * np.sin(2 * np.pi * f0 * k * t + rng.uniform(0, 6.28)) for k in range(1, 4))
            env = 0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(1, 4) * t)
            level = np.exp(rng.normal(1.2, 0.8))
            s = s * env * level
            clean.append(s)
            noisy.append(s + 0.5 * level * rng.standard_normal(t.size))
        self.clean = torch.tensor(np.array(clean)).to(torch.float16)
        self.noisy = torch.tensor(np.array(noisy)).to(torch.float16)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        return self.noisy[i], self.clean[i]


class Denoiser(nn.Module):
    def __init__(self, frame=40, width=64):
        super().__init__()
        self.frame = frame
        self.enc = nn.Linear(3 * frame, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.dec = nn.Linear(width, frame)

    def forward(self, wav):
        rms = wav.float().pow(2).mean(-1, keepdim=True).sqrt() + 1e-4
        fr = (wav / rms).view(wav.size(0), -1, self.frame)
        ctx = torch.cat([fr.roll(1, 1), fr, fr.roll(-1, 1)], dim=-1)
        h = torch.tanh(self.enc(ctx))
        for fc in self.mid:
            h = h + torch.relu(fc(h))
        y = self.dec(h).flatten(1)
        return y * rms.to(y.dtype)


def si_sdr(est, ref, eps=1e-4):
    est = est - est.mean(dim=-1, keepdim=True)
    ref = ref - ref.mean(dim=-1, keepdim=True)
    dot = (est * ref).sum(dim=-1, keepdim=True)
    energy = (ref * ref).sum(dim=-1, keepdim=True)
    target = dot / (energy + eps) * ref
    noise = est - target
    ratio = (target.pow(2).sum(-1) + eps) / (noise.pow(2).sum(-1) + eps)
    return 10 * torch.log10(ratio + eps)


@torch.no_grad()
def validate(model, data):
    model.eval()
    vals = []
    for noisy, clean in DataLoader(data, batch_size=16):
        vals.append(si_sdr(model(noisy.float()), clean.float()))
    model.train()
    return torch.cat(vals).mean().item()


def main():
    torch.manual_seed(3)
    train, val = NoisyClips(192, 0), NoisyClips(48, 1)
    loader = DataLoader(train, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    step = 0
    for epoch in range(6):
        for noisy, clean in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                est = model(noisy)
                loss = -si_sdr(est, clean).mean()
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} scale {scaler.get_scale():g}")
            step += 1
    print(f"final val si-sdr {validate(model, val):.3f}")


if __name__ == "__main__":
    main()
