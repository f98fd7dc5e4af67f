import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)


def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(-1) + 1e-12)


embed = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(embed.parameters(), lr=0.05)
amp_dtype = torch.float16
classes = torch.randn(5, 10) * 2

for step in range(200):
    c = torch.randint(0, 5, (32,))
    anchor = classes[c] + torch.randn(32, 10)
    positive = classes[c] + torch.randn(32, 10)
    if step == 120:
        positive[0] = anchor[0]  # duplicate image in the dataset
    negative = classes[(c + 1) % 5] + torch.randn(32, 10)
    with torch.autocast("cpu", dtype=amp_dtype):
        ea, ep, en = embed(anchor), embed(positive), embed(negative)
        dap, dan = distance(ea.float(), ep.float()), distance(ea.float(), en.float())
        loss = F.relu(dap - dan + 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"triplet step {step} loss {loss.item():.4f}")
