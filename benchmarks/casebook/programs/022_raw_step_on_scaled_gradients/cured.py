import torch
import torch.nn as nn

torch.manual_seed(0)


class RadianceField(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(18, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    @staticmethod
    def encode(p):
        out = [f(p * 2**k) for k in range(3) for f in (torch.sin, torch.cos)]
        return torch.cat(out, -1)

    def forward(self, p):
        return torch.sigmoid(self.mlp(self.encode(p)))


field = RadianceField()
optimizer = torch.optim.SGD(field.parameters(), lr=0.5, momentum=0.9)
grad_scaler = torch.amp.GradScaler("cpu", init_scale=2**16)

for step in range(100):
    pts = torch.rand(256, 3)
    rgb = (pts * 6).sin() * 0.4 + 0.5
    with torch.autocast("cpu", dtype=torch.float16):
        pred = field(pts)
        loss = nn.functional.smooth_l1_loss(pred, rgb)
    optimizer.zero_grad()
    # same order as in the reference implementation
    grad_scaler.scale(loss).backward()
    grad_scaler.step(optimizer)
    grad_scaler.update()
    if step % 10 == 0:
        print(f"step={step} | loss={loss:.5f}")
