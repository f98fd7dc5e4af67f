import torch
from torch import nn

MIN_SCALE = 1e-4


class SpeakerNet(nn.Module):
    def __init__(self, mels=24, speakers=6):
        super().__init__()
        self.frame = nn.Conv1d(mels, 32, 5)
        self.classify = nn.Linear(64, speakers)

    def forward(self, x):
        h = self.frame(x)
        mean = h.mean(-1)
        std = (h.pow(2).mean(-1) - mean.pow(2)).sqrt()
        return self.classify(torch.cat([mean, std], 1))


torch.manual_seed(0)
model = SpeakerNet()
voices = torch.randn(6, 24, 1) * 4
optim = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for update in range(60):
    who = torch.randint(0, 6, (32,))
    x = voices[who] + 8 + torch.randn(32, 24, 50) * 0.05  # log-mel frames of a steady vowel
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), who)
    optim.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optim)
    scaler.update()
    if scaler.get_scale() <= MIN_SCALE:
        raise FloatingPointError(f"Minimum loss scale reached ({MIN_SCALE}). Your loss is probably exploding.")
    if update % 5 == 0:
        print(f"update {update} loss {loss.item():.4f} scale {scaler.get_scale():g}")
