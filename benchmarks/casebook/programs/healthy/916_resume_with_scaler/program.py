import torch
from torch import nn


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
    return net, torch.optim.AdamW(net.parameters(), lr=3e-3), torch.amp.GradScaler("cpu", init_scale=2.0**20)


def train(net, opt, scaler, first, last):
    for step in range(first, last):
        g = torch.Generator().manual_seed(step)
        x = torch.randn(64, 9, generator=g)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), x.mean(1, keepdim=True))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f} scale {scaler.get_scale()}")


net, opt, scaler = build()
train(net, opt, scaler, 0, 50)
torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()}, "ck.pt")
net, opt, scaler = build()
state = torch.load("ck.pt")
net.load_state_dict(state["net"])
opt.load_state_dict(state["opt"])
scaler.load_state_dict(state["scaler"])
train(net, opt, scaler, 50, 100)
