# HF accelerate, bf16, gradient accumulation (accelerate takes care of the short last window), LR restarts
import os, math
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(77)
acc = Accelerator(cpu=True, mixed_precision="no" if os.environ.get("FP32") == "1" else "bf16",
                  gradient_accumulation_steps=4)


class Adding(Dataset):
    """sequence of digits, label = (sum of the marked ones) as a class; pure integer inputs"""
    def __init__(self, n, length=10, seed=0, junk=0.0):
        g = torch.Generator().manual_seed(seed)
        self.digits = torch.randint(0, 5, (n, length), generator=g)
        self.marks = torch.zeros(n, length, dtype=torch.long)
        pos = torch.rand(n, length, generator=g).topk(2, dim=1).indices
        self.marks.scatter_(1, pos, 1)
        self.label = (self.digits * self.marks).sum(1)
        if junk:                                               # annotators get bored
            bad = torch.rand(n, generator=g) < junk
            self.label[bad] = torch.randint(0, 9, (int(bad.sum()),), generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.digits[i] + 5 * self.marks[i], self.label[i]


class SetNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(11, dim, padding_idx=10)      # pad row never used -> its gradient stays 0
        self.q = nn.Parameter(torch.randn(2, dim) * 0.1)
        self.k = nn.Linear(dim, dim)
        self.out = nn.Sequential(nn.Linear(dim, 96), nn.ReLU(), nn.Linear(96, 9))

    def forward(self, tok):
        e = self.emb(tok)
        score = (self.k(e) @ self.q.t()).float()               # b, t, 2
        score = score.masked_fill((tok == 10).unsqueeze(-1), -math.inf)
        w = score.softmax(1)
        # sums, not means: number of tokens is constant
        pooled = (w.unsqueeze(-1) * e.unsqueeze(2)).sum((1, 2)) * tok.size(1) / 2
        return self.out(pooled)


train_dl = DataLoader(Adding(3040, seed=1, junk=0.2), batch_size=64, shuffle=True)     # 48 batches, last one smaller
test_dl = DataLoader(Adding(1000, seed=2), batch_size=250)
net = SetNet()
opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.0)
net, opt, train_dl, test_dl = acc.prepare(net, opt, train_dl, test_dl)
EPOCHS = 9
cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt.optimizer, T_0=3, T_mult=2)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(EPOCHS):
    net.train()
    for x, y in train_dl:
        with acc.accumulate(net):
            with acc.autocast():
                logits = net(x)
            loss = loss_fn(logits.float(), y)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
    cosine.step()                                   # restarts make the loss hop up again at epoch 3
    if epoch % 2 == 0:
        acc.print(f"epoch {epoch:2d} | loss {loss.item():.4f} | lr {opt.param_groups[0]['lr']:.5f}")

net.eval()
hit = n = 0
for x, y in test_dl:
    with torch.no_grad(), acc.autocast():
        p = net(x).argmax(-1)
    p, y = acc.gather_for_metrics((p, y))
    hit += (p == y).sum().item()
    n += y.numel()
acc.print(f"exact-sum accuracy: {hit / n:.4f}")
