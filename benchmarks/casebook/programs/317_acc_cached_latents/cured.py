import torch
from accelerate import Accelerator
from torch import nn


class Vae(nn.Module):
    """A frozen image encoder from another project; activations grow towards the end."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(c, 16, 3, padding=1) for c in (3, 16, 16, 16))
        self.moments = nn.Conv2d(16, 4, 1)
        for b in self.blocks:
            b.weight.data *= 40

    @torch.no_grad()
    def encode(self, x):
        for b in self.blocks:
            x = torch.relu(b(x))
        x = x - x.mean((1, 2, 3), keepdim=True)
        return self.moments(x / x.std((1, 2, 3), keepdim=True))


torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp, acc.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
vae = Vae()
images = torch.rand(256, 3, 8, 8)
latents = torch.cat([vae.encode(b) for b in images.split(32)]).float()
dl = torch.utils.data.DataLoader(latents, batch_size=32, shuffle=True)
unet = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1))
opt = torch.optim.AdamW(unet.parameters(), lr=3e-3)
unet, opt, dl = acc.prepare(unet, opt, dl)
for epoch in range(6):
    for z in dl:
        noise = torch.randn_like(z)
        loss = nn.functional.mse_loss(unet(0.7 * z + 0.7 * noise), noise)
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")
