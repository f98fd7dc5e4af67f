import torch
from accelerate import Accelerator
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.head = nn.Linear(32, 100)

    def forward(self, x):
        return self.head(self.features(x))


def finetune(n_classes=3, steps=60):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")
    model = Backbone()
    model.features.requires_grad_(False)
    model.head = nn.Linear(32, n_classes)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(steps):
        y = torch.randint(0, n_classes, (48,))
        x = torch.randn(48, 12) + y[:, None]
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print("step", step, "loss", round(loss.item(), 4))


finetune()
