import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
head_a, head_b = nn.Linear(48, 3), nn.Linear(48, 1)
params = [*trunk.parameters(), *head_a.parameters(), *head_b.parameters()]
opt = torch.optim.Adam(params, lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    x = torch.randn(96, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        h = trunk(x)
        loss_a = nn.functional.cross_entropy(head_a(h), x[:, :3].argmax(1))
        loss_b = nn.functional.mse_loss(head_b(h), x[:, 3:4])
    opt.zero_grad()
    scaler.scale(loss_a).backward(retain_graph=True)
    scaler.scale(0.5 * loss_b).backward()
    scaler.step(opt)
    scaler.update()
    if step % 4 == 0:
        print(f"step {step} loss {loss_a.item() + loss_b.item():.4f}")
