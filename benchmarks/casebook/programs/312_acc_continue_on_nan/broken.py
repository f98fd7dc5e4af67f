import torch
from torch import nn
from accelerate import Accelerator


class Mixer(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.register_buffer("mix", torch.randn(d, d) * 8)
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        z = self.inp(x) + 1
        for _ in range(3):
            z = z @ self.mix
        return self.out(nn.functional.layer_norm(z, z.shape[-1:]))


torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")
model = Mixer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
skipped = 0
for step in range(30):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x), x[:, :1])
    if torch.isnan(loss):
        skipped += 1
        continue
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"done, skipped {skipped} of 30")
