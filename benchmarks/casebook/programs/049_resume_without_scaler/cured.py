import torch
from torch import nn


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    return net, torch.optim.Adam(net.parameters(), lr=3e-3), torch.amp.GradScaler("cpu", init_scale=2.0**30)


def steps(net, opt, scaler, n, name):
    taken = 0
    for i in range(n):
        x = torch.randn(64, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), (x[:, :1] * 3).sin()) * 20
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        taken += scaler.get_scale() >= before
        if i % 5 == 0:
            print(f"{name} {i} loss {loss.item():.4f}")
    return taken


net, opt, scaler = make()
steps(net, opt, scaler, 60, "first")
state = {"net": net.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()}
torch.save(state, "ckpt.pt")

# a job of 20 steps, as often as the queue lets us
net, opt, scaler = make()
state = torch.load("ckpt.pt")
net.load_state_dict(state["net"])
opt.load_state_dict(state["opt"])
scaler.load_state_dict(state["scaler"])
print("steps taken after resume:", steps(net, opt, scaler, 20, "resumed"))
