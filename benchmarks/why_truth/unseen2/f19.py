"""Spectrogram denoising on short synthetic frames; frames with a bad loss are left out."""
import torch
import torch.nn as nn

torch.manual_seed(8)

STEPS = 120
BATCH = 16
BINS = 64
SKIP_BAD = True


def frames(n):
    """Amplitude spectra in ADC counts: a few tones over a noise floor."""
    clean = torch.zeros(n, BINS)
    for _ in range(3):
        position = torch.randint(0, BINS, (n,))
        clean[torch.arange(n), position] += 20.0 + 480.0 * torch.rand(n)
    noisy = clean + 5.0 * torch.randn(n, BINS)
    return noisy, clean


class Denoiser(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.enc = nn.Linear(BINS, hidden)
        self.dec = nn.Linear(hidden, BINS)
        self.gate = nn.Linear(hidden, BINS)

    def forward(self, x):
        h = torch.relu(self.enc(x / 100.0))
        return x * torch.sigmoid(self.gate(h)) + self.dec(h)


def energy_error(prediction, target):
    """Error energy of every frame relative to the energy of the clean frame."""
    target = target.to(prediction.dtype)
    error = (prediction - target).pow(2).sum(-1)
    energy = target.pow(2).sum(-1)
    return (error / energy).mean()


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

done, last = 0, 0.0
for step in range(STEPS):
    noisy, clean = frames(BATCH)
    with torch.autocast("cpu", dtype=torch.float16):
        restored = model(noisy.half())
        loss = energy_error(restored, clean)
    if step % 10 == 0:
        print(f"step {step} loss {last:.4f} updates {done}")
    if SKIP_BAD and not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    last = loss.item()
    done += 1

with torch.no_grad():
    noisy, clean = frames(256)
    error = (model(noisy) - clean).pow(2).sum(-1) / clean.pow(2).sum(-1)
print(f"finished {STEPS} steps, {done} updates, test error {error.mean().item():.4f}")
