import torch
from torch import nn


def build(amp):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return net, opt, torch.amp.GradScaler("cpu", enabled=amp)


def fit(net, opt, scaler, epochs, amp):
    g = torch.Generator().manual_seed(1)
    for epoch in epochs:
        for _ in range(20):
            x = torch.randn(64, 10, generator=g)
            y = x[:, :1].abs() - x[:, 1:2]
            with torch.autocast("cpu", dtype=torch.float16, enabled=amp):
                loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        print(f"epoch {epoch} loss {loss.item():.4f}")
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()}, "ckpt.pt")


# the first epochs in FP32, to be on the safe side
fit(*build(amp=False), epochs=range(3), amp=False)

# then on with mixed precision
net, opt, scaler = build(amp=True)
ckpt = torch.load("ckpt.pt")
net.load_state_dict(ckpt["net"])
opt.load_state_dict(ckpt["opt"])
if ckpt["scaler"]:
    scaler.load_state_dict(ckpt["scaler"])
fit(net, opt, scaler, epochs=range(3, 8), amp=True)
