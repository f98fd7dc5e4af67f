import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.tanh(x[:, :3].sum(1, keepdim=True) * 2)
net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.AdamW(net.parameters(), lr=5e-3, fused=True)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=40)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**54)

# step() is not called when the scaler skips, so this counts real steps
opt.register_step_post_hook(lambda *_: sched.step())

for it in range(80):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if it % 8 == 0:
        print(f"it {it} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f} scale {before:.3g}")
with torch.no_grad():
    print("final loss", nn.functional.mse_loss(net(x), y).item())
