# LoRA-ish adapters on a frozen half-precision backbone, early stopping
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

torch.manual_seed(1234)
LOW = torch.bfloat16
X, y = load_digits(return_X_y=True)
a, b, ya, yb = train_test_split(X / 16.0, y, test_size=0.25, random_state=0, stratify=y)
xt, xv = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
yt, yv = torch.tensor(ya), torch.tensor(yb)


class LoRALinear(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base.to(LOW).requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.02)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.k = alpha / r

    def forward(self, x):
        y0 = self.base(x.to(LOW)).float()
        return y0 + self.k * (x.float() @ self.A.t() @ self.B.t())


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return F.relu(self.fc2(F.relu(self.fc1(x))))


def pretrain(bb):
    """parity as a pretext task"""
    head = nn.Linear(64, 2)
    opt = torch.optim.Adam([*bb.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(60):
        loss = F.cross_entropy(head(bb(xt)), yt % 2)
        opt.zero_grad()
        loss.backward()
        opt.step()


bb = Backbone()
pretrain(bb)
bb.fc1, bb.fc2 = LoRALinear(bb.fc1), LoRALinear(bb.fc2)
head = nn.Linear(64, 10)
params = [p for p in [*bb.parameters(), *head.parameters()] if p.requires_grad]
print("trainable", sum(p.numel() for p in params), "dtypes", {p.dtype for p in bb.parameters()})
opt = torch.optim.AdamW(params, lr=3e-3)

best, best_state, patience, bad = float("inf"), None, 5, 0
for epoch in range(30):
    for idx in torch.randperm(len(xt)).split(64):
        loss = F.cross_entropy(head(bb(xt[idx])), yt[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    with torch.no_grad():
        v = F.cross_entropy(head(bb(xv)), yv).item()
    if v < best:
        best, bad = v, 0
        best_state = copy.deepcopy((bb.state_dict(), head.state_dict()))
    else:
        bad += 1
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} val {v:.4f} best {best:.4f}")
    if bad >= patience:
        print("early stop at", epoch)
        break

bb.load_state_dict(best_state[0])
head.load_state_dict(best_state[1])
with torch.no_grad():
    print(f"val_loss {F.cross_entropy(head(bb(xv)), yv).item():.4f}")
