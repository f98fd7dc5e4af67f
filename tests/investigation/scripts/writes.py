"""A healthy script that writes in many ways: appends, checkpoints, removes, resumes."""

import json
import os
import shutil
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
here = Path(__file__).parent
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if os.path.exists("last.pt"):
    net.load_state_dict(torch.load("last.pt"))
for step in range(5):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("log.txt", "a") as log:
        log.write(f"{step} {loss.item()}\n")
    torch.save(net.state_dict(), "last.pt")
    os.makedirs("out/plots", exist_ok=True)
    (here / "out" / "metrics.json").write_text(json.dumps({"loss": loss.item()}))
    with open("large.bin", "r+b") as file:
        file.write(b"changed")
if os.path.exists("old"):
    shutil.rmtree("old")
os.rename("notes.txt", "renamed.txt")
