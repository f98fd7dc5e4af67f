"""Two-tower recommender: SparseAdam for tables, AdamW for the towers, one scaler, accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
U, I, K, ACC = 400, 250, 16, 2
pu, qi = torch.randn(U, 6), torch.randn(I, 6)


def interactions(n):
    u, i = torch.randint(0, U, (n,)), torch.randint(0, I, (n,))
    p = torch.sigmoid(1.2 * (pu[u] * qi[i]).sum(1) - 0.5)
    return u, i, (torch.rand(n) < p).float()


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Embedding(U, K, sparse=True)
        self.i = nn.Embedding(I, K, sparse=True)
        for e in (self.u, self.i):
            nn.init.normal_(e.weight, std=0.3)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(K, 32), nn.Tanh(), nn.Linear(32, 16))
        self.b = nn.Sequential(nn.Linear(K, 32), nn.Tanh(), nn.Linear(32, 16))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, eu, ei):
        return (self.a(eu) * self.b(ei)).sum(-1).float() + self.bias


tables, towers = Tables(), Towers()
opt_s = torch.optim.SparseAdam(list(tables.parameters()), lr=1e-2)
opt_d = torch.optim.AdamW(towers.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)

tr, va = interactions(30000), interactions(6000)
bs, micro = 128, 0
for epoch in range(3):
    perm = torch.randperm(30000)
    tot = cnt = 0
    for k in range(0, 30000 - bs * ACC + 1, bs * ACC):
        opt_s.zero_grad(set_to_none=True)
        opt_d.zero_grad(set_to_none=True)
        for j in range(ACC):
            b = perm[k + j * bs:k + (j + 1) * bs]
            with torch.autocast("cpu", dtype=torch.float16):
                logit = towers(tables.u(tr[0][b]), tables.i(tr[1][b]))
            loss = F.binary_cross_entropy_with_logits(logit, tr[2][b]) / ACC
            scaler.scale(loss).backward()
            tot, cnt = tot + loss.item() * ACC, cnt + 1
        scaler.unscale_(opt_d)
        nn.utils.clip_grad_norm_(towers.parameters(), 1.0)
        scaler.step(opt_d)
        scaler.step(opt_s)
        scaler.update()
        if (k // (bs * ACC)) % 40 == 0:
            print(f"epoch {epoch} it {k // (bs * ACC)} bce {tot / cnt:.4f} scale {scaler.get_scale():.0f}")

with torch.no_grad():
    logit = towers(tables.u(va[0]), tables.i(va[1]))
    print(f"val_bce {F.binary_cross_entropy_with_logits(logit, va[2]).item():.4f}")
