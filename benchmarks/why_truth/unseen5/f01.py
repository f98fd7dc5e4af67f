"""Metric learning on small glyph images with a triplet loss, fp16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
N_CLASS, PER_CLASS = 10, 120
protos = torch.rand(N_CLASS, 1, 12, 12)


def make_split(per_class):
    xs, ys = [], []
    for c in range(N_CLASS):
        xs.append(protos[c] + 0.55 * torch.randn(per_class, 1, 12, 12))
        ys.append(torch.full((per_class,), c))
    return torch.cat(xs), torch.cat(ys)


x_train, y_train = make_split(PER_CLASS)
x_val, y_val = make_split(40)


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 9, dim)

    def forward(self, x):
        return F.normalize(self.head(self.body(x)).float(), dim=1)


def pairwise(e):
    diff = e[:, None, :] - e[None, :, :]
    return diff.pow(2).sum(-1).sqrt()


def batch_hard_triplet(e, y, margin=0.4):
    d = pairwise(e)
    same = y[:, None] == y[None, :]
    hardest_pos = torch.where(same, d, torch.zeros_like(d)).max(1).values
    hardest_neg = torch.where(same, torch.full_like(d, 1e4), d).min(1).values
    return F.relu(hardest_pos - hardest_neg + margin).mean()


@torch.no_grad()
def evaluate(model):
    model.eval()
    with torch.autocast("cpu", dtype=torch.float16):
        ref, qry = model(x_train), model(x_val)
    model.train()
    cent = torch.stack([ref[y_train == c].mean(0) for c in range(N_CLASS)])
    return ((qry @ cent.T).argmax(1) == y_val).float().mean().item()


model = Embedder()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")

for epoch in range(6):
    perm = torch.randperm(len(x_train))
    total = 0.0
    for idx in perm.split(60):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            emb = model(x_train[idx])
        loss = batch_hard_triplet(emb, y_train[idx])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
    print(f"epoch {epoch} loss {total / (len(x_train) // 60):.4f} scale {scaler.get_scale():.3g}")

print(f"val_acc {evaluate(model):.4f}")
