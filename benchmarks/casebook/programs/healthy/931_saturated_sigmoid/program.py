import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 1)
nn.init.constant_(net.weight, 12.0)
opt = torch.optim.Adam(net.parameters(), lr=0.3)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    x = torch.randn(64, 6)
    y = (x[:, :1] > 0).float()
    with torch.autocast("cpu", dtype=torch.float16):
        logit = net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f} p max {torch.sigmoid(logit).max().item():.4f}")
