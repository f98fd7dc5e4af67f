import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator


class Matcher(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.image = nn.Linear(32, dim)
        self.text = nn.Linear(18, dim)
        self.temperature = 1e-5

    def forward(self, image, text):
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        sims = (a @ b.T).half()
        logits = sims / self.temperature
        return F.cross_entropy(logits, torch.arange(len(a), device=logits.device))


torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = Matcher()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(12):
    latent = torch.randn(24, 18)
    image = torch.cat([latent, torch.randn(24, 14)], 1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(image, latent)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.is_main_process:
        print("step", step, "loss", loss.item())
