import torch
from torch import nn

torch.manual_seed(2)
X = torch.randn(512, 10)
Y = torch.tanh(X[:, :4].sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(10, 128), nn.Tanh(), nn.Linear(128, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
STEPS = 80
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.001, total_iters=45)
# someone measured that a big start scale is best
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**50)

done = 0
while done < STEPS:
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(X), Y)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    sched.step()
    done += 1
    if done % 10 == 0:
        print(f"{done} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f} scale {before}")

with torch.no_grad():
    print("final loss", nn.functional.mse_loss(net(X), Y).item())
