import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
emb, qkv, head = nn.Embedding(30, 48), nn.Linear(48, 144), nn.Linear(48, 30)
params = [*emb.parameters(), *qkv.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
future = torch.ones(12, 12).triu(1).bool()
for step in range(60):
    seq = (torch.arange(13) + torch.randint(0, 30, (16, 1))) % 30
    with torch.autocast("cpu", dtype=torch.float16):
        q, k, v = qkv(emb(seq[:, :-1])).chunk(3, -1)
        att = (q @ k.transpose(1, 2) / 48**0.5).masked_fill(future, float("-inf"))
        loss = F.cross_entropy(head(att.softmax(-1) @ v).transpose(1, 2), seq[:, 1:])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"step {step} loss {loss.item():.4f}")
