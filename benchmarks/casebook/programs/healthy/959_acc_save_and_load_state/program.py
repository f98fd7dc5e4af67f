import torch
from accelerate import Accelerator
from torch import nn


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    return acc.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-3))


def train(net, opt, name):
    for step in range(100):
        x = torch.randn(64, 8)
        loss = nn.functional.mse_loss(net(x), x[:, :1] * x[:, 1:2].sign())
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
        if step % 10 == 9:
            print(f"{name} {step + 1} loss {loss.item():.4f}")


acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp = True
acc.scaler = torch.amp.GradScaler("cpu")
net, opt = build()
train(net, opt, "first")
acc.save_state("checkpoint")

acc.free_memory()
net, opt = build()
acc.load_state("checkpoint")
train(net, opt, "resumed")
