import torch
import torch.nn as nn

torch.manual_seed(0)


class DeepSigmoid(nn.Module):
    def __init__(self, depth=5, width=32):
        super().__init__()
        layers = [nn.Linear(6, width), nn.Sigmoid()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.Sigmoid()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)
        nn.init.normal_(self.head.weight, std=1e-4)

    def forward(self, x):
        return self.head(self.body(x)) * 1e-3


x = torch.randn(4096, 6)
y = (x[:, :1] > 0).float() * 2 - 1
y = y * 1e-3
model = DeepSigmoid(depth=1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

for step in range(150):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
        loss = (out.float() - y).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or step == 149:
        print(f"step={step} loss={loss.item() * 1e6:.4f} (x 1e-6)")
