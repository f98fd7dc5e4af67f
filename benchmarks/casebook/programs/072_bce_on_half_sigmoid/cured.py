import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
model[2].weight.data *= 40  # the detector's head after long training is very sure
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
skipped = 0
for step in range(120):
    x = torch.randn(64, 12)
    y = (x[:, :1] + x[:, 1:2] > 0).float()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():g}")
print(f"skipped {skipped} of 120")
