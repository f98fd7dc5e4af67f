import torch
from accelerate import Accelerator
from torch import nn

torch.autograd.set_detect_anomaly(True)  # left over from last week's hunt
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return self.up(torch.relu(self.norm(self.down(x))))


images = torch.zeros(256, 1, 8, 8)
images[:, :, 2:6, 2:6] = torch.rand(256, 1, 1, 1)
dl = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True)
model = Unet()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
model, opt, dl = accelerator.prepare(model, opt, dl)
for epoch in range(5):
    total = 0.0
    for x in dl:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x + torch.randn_like(x) * 0.2), x, reduction="sum") / len(x)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        total += loss.item() / len(dl)
    print(f"epoch {epoch} loss {total:.4f}")
