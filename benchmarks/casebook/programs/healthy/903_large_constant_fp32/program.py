import torch
import torch.nn as nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(25, 24, padding_idx=0)
        self.att = nn.Linear(24, 1)
        self.out = nn.Linear(24, 2)

    def forward(self, ids):
        x = self.tok(ids)
        s = self.att(x)
        with torch.autocast("cpu", enabled=False):
            s = s.float().masked_fill((ids == 0)[..., None], -1e9)
            w = torch.softmax(s, 1)
        return self.out((w * x).sum(1))


torch.manual_seed(0)
model = Pool()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    ids = torch.randint(1, 25, (32, 6))
    ids[:, 4:] *= torch.randint(0, 2, (32, 2))
    y = ((ids > 12).sum(1) > 2).long()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(ids), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print("step", step, "loss", round(loss.item(), 4))
