#!/usr/bin/env python
# next-item recommender, whole model in half to save memory
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device, dtype = "cpu", torch.float16

n_items, emb, hist, n_train, n_test = 300, 32, 5, 6000, 1000
trans = torch.stack([torch.randperm(n_items - 1)[:3] + 1 for _ in range(n_items)])


def build(n):
    seqs = torch.zeros(n, hist + 1, dtype=torch.long)
    seqs[:, 0] = torch.randint(1, n_items, (n,))
    for t in range(1, hist + 1):
        pick = torch.randint(0, 3, (n,))
        pick[torch.rand(n) < 0.6] = 0
        seqs[:, t] = trans[seqs[:, t - 1], pick]
    return seqs[:, :-1], seqs[:, -1]


xtr, ytr = build(n_train)
xte, yte = build(n_test)


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(n_items, emb, padding_idx=0)
        self.fc1 = nn.Linear(emb * hist, 128)
        self.fc2 = nn.Linear(128, n_items)
        nn.init.normal_(self.emb.weight, std=0.3)

    def forward(self, x):
        h = self.emb(x).flatten(1)
        return self.fc2(F.relu(self.fc1(h)))


model = Rec().to(device=device, dtype=dtype)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def run_eval():
    model.eval()
    with torch.no_grad():
        out = model(xte).float()
    model.train()
    return F.cross_entropy(out, yte).item(), (out.argmax(-1) == yte).float().mean().item()


bs = 128
it = 0
for epoch in range(6):
    order = torch.randperm(n_train)
    for k in range(0, n_train - bs, bs):
        b = order[k:k + bs]
        logits = model(xtr[b])
        loss = F.cross_entropy(logits.float(), ytr[b])
        optimizer.zero_grad()
        (loss * 256.0).backward()
        for p in model.parameters():
            p.grad.div_(256.0)
        optimizer.step()
        if it % 50 == 0:
            print(f"iter {it} loss {loss.item():.4f}")
        it += 1
    vl, acc = run_eval()
    print(f"== epoch {epoch} val {vl:.4f} acc {acc:.3f}")

print(f"val_loss {vl:.4f}")
