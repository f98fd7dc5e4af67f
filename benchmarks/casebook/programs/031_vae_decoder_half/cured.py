import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(4, 32, 3, padding=1)
        self.conv_mid = nn.Conv2d(32, 32, 3, padding=1)
        self.conv_out = nn.Conv2d(32, 3, 3, padding=1)
        # the published weights have outliers like this one
        with torch.no_grad():
            self.conv_in.weight[3] *= 4e5

    def forward(self, z):
        h = self.conv_in(z)
        h = F.group_norm(h, 32)
        h = F.silu(self.conv_mid(h))
        return self.conv_out(h)


vae = Decoder()
vae.requires_grad_(False)
vae_dtype = torch.float32
vae.to(vae_dtype)
denoiser = nn.Conv2d(4, 4, 3, padding=1)
opt = torch.optim.AdamW(denoiser.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
target = vae.float()(torch.ones(4, 4, 8, 8)).detach()
vae.to(vae_dtype)

for step in range(30):
    z = 1 + 0.5 * torch.randn(4, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        latents = denoiser(z)
    img = vae(latents.to(vae_dtype))
    if torch.isnan(img).any():
        raise RuntimeError("NaN detected in latents")
    loss = F.mse_loss(img.float(), target)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 3 == 0:
        print(f"steps {step}/30, loss={loss.item():.5f}")
