import torch
from torch import nn
from torch.utils.data import TensorDataset, DataLoader

torch.manual_seed(0)
table = torch.rand(3000, 12) * 10
table[::9, 5] = -1.0  # "unknown" code used by the export
price = table[:, :5].sum(1) / 10

# preprocessing
table[:, 5] = torch.log1p(table[:, 5].clamp(min=0))
table = (table - table.nanmean(0)) / 3

loader = DataLoader(TensorDataset(table, price), batch_size=50, shuffle=True)
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
step = 0
for epoch in range(4):
    for xb, yb in loader:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.smooth_l1_loss(net(xb).squeeze(1), yb)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale()}")
