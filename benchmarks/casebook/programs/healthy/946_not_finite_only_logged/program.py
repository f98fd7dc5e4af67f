import torch
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
bad = 0
for step in range(150):
    x = torch.randn(64, 10)
    y = x[:, :4].argmax(1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    if torch.isnan(loss) or not torch.isfinite(norm):
        bad += 1  # for the log; the scaler decides
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f} bad {bad}")
