import torch
from torch import nn
import torch.nn.functional as F

PAD = 0
torch.manual_seed(3)


def make_batch(n=32, length=10):
    ids = torch.randint(1, 20, (n, length))
    lens = torch.randint(0, length + 1, (n,))  # some comments are empty
    for row, l in zip(ids, lens):
        row[l:] = PAD
    return ids, (ids == 7).any(1).float()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(20, 32)
        self.q = nn.Linear(32, 32)
        self.k = nn.Linear(32, 32)
        self.v = nn.Linear(32, 32)
        self.cls = nn.Linear(32, 1)

    def forward(self, ids):
        x = self.tok(ids)
        keep = ids != PAD
        w = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        w = torch.where(keep[:, None, :], w, torch.tensor(-1e9, dtype=w.dtype))
        x = torch.softmax(w, -1) @ self.v(x)
        return self.cls(x.amax(1)).squeeze(-1)


enc = Encoder()
opt = torch.optim.Adam(enc.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(4):
    running = 0.0
    for _ in range(15):
        ids, y = make_batch()
        with torch.autocast("cpu", torch.float16):
            loss = F.binary_cross_entropy_with_logits(enc(ids), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        running += loss.item()
    print(f"epoch {epoch} loss {running / 15:.4f}")
