"""Click-through model with hashed categorical features, weights and activations in half."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
FIELDS, BUCKETS = 6, 400
HALF = torch.float16


def click_log(n, gen):
    w = torch.randn(FIELDS, BUCKETS, generator=torch.Generator().manual_seed(99))
    ids = (BUCKETS * torch.rand(n, FIELDS, generator=gen).pow(2)).long()
    dense = torch.randn(n, 4, generator=gen)
    logit = w.gather(1, ids.t()).sum(0) * 0.8 + dense[:, 0] - 0.6 * dense[:, 1] * dense[:, 2]
    y = (torch.rand(n, generator=gen) < torch.sigmoid(logit)).float()
    return ids, dense, y


class CTR(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.table = nn.Embedding(FIELDS * BUCKETS, dim)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * dim + 4, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("offset", torch.arange(FIELDS) * BUCKETS)

    def forward(self, ids, dense):
        e = self.table(ids + self.offset).flatten(1)
        return self.mlp(torch.cat([e, dense], 1)).squeeze(1)


def auc(score, y):
    r = torch.empty_like(score)
    r[score.argsort()] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    p = y.sum()
    return ((r[y > 0].sum() - p * (p + 1) / 2) / (p * (len(y) - p))).item()


def make_callbacks():
    def log(step, loss):
        if step % 60 == 0:
            print(f"step {step} loss {loss:.4f}")
    return [log]


def main():
    g = torch.Generator().manual_seed(4)
    ids, dense, y = click_log(40_000, g)
    vi, vd, vy = click_log(8_000, g)
    model = CTR().to(HALF)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
    callbacks = make_callbacks()
    step = 0
    for _ in range(4):
        for idx in torch.randperm(len(ids)).split(256):
            out = model(ids[idx], dense[idx].to(HALF))
            loss = F.binary_cross_entropy_with_logits(out.float(), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            for cb in callbacks:
                cb(step, loss.item())
            step += 1
    with torch.no_grad():
        s = model(vi, vd.to(HALF)).double()
    print(f"val_auc {auc(s, vy.double()):.4f}")


if __name__ == "__main__":
    main()
