import copy

import torch
from torch import nn


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(2000, 32, mode="mean"), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    return net, torch.optim.AdamW(net.parameters(), lr=2e-3), torch.amp.GradScaler("cpu")


def slim(state):
    """Halve the size of the optimizer's part of a checkpoint."""
    state = copy.deepcopy(state)
    for s in state["state"].values():
        for key, value in s.items():
            if key != "step" and torch.is_tensor(value):
                s[key] = value.half()
    return state


def train(net, opt, scaler, steps, name, every):
    for i in range(steps):
        words = torch.randint(0, 2000, (128, 8))
        y = (words % 4).mode(1).values
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(words), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if i % every == every - 1:
            print(f"{name} {i + 1} loss {loss.item():.4f}")


net, opt, scaler = make()
train(net, opt, scaler, 400, "first", 50)
ckpt = {"net": net.state_dict(), "opt": slim(opt.state_dict()), "scaler": scaler.state_dict()}
torch.save(ckpt, "last.pt")

net, opt, scaler = make()
ckpt = torch.load("last.pt")
net.load_state_dict(ckpt["net"])
opt.load_state_dict(ckpt["opt"])
scaler.load_state_dict(ckpt["scaler"])
train(net, opt, scaler, 20, "resumed", 2)
