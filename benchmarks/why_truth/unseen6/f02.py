# batch-hard triplet training, person re-id style (toy identities)
import random
import torch
from torch import nn
from torch.nn import functional as F

SEED = 42
random.seed(SEED)
torch.manual_seed(SEED)

N_ID, DIM, P, K = 40, 48, 8, 4
MARGIN = 0.3
ITERS = 250
centers = torch.randn(N_ID, DIM)
mix = torch.randn(DIM, DIM) / DIM ** 0.5


def sample(ids, k):
    base = centers[ids].repeat_interleave(k, 0)
    x = base + 1.1 * torch.randn_like(base)
    return torch.tanh(x @ mix) + 0.1 * x, ids.repeat_interleave(k)


class ReID(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(DIM, 128), nn.LayerNorm(128), nn.GELU(),
            nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(),
            nn.Linear(128, 32),
        )

    def forward(self, x):
        return self.f(x)


def pairwise_distance(e, eps=1e-12):
    sq = (e * e).sum(dim=1)
    diff = e.unsqueeze(1) - e.unsqueeze(0)
    d2 = (diff * diff).sum(-1)
    return torch.sqrt(d2 + eps), sq


def batch_hard(e, lab):
    dist, sq = pairwise_distance(e)
    same = lab[:, None] == lab[None, :]
    hardest_pos = (dist * same).max(dim=1).values
    hardest_neg = dist.masked_fill(same, 1e4).min(dim=1).values
    loss = F.softplus(hardest_pos - hardest_neg + MARGIN).mean()
    return loss.float() + 1e-4 * sq.float().mean()


@torch.no_grad()
def evaluate(model):
    model.eval()
    g = torch.Generator().manual_seed(7)
    ids = torch.arange(N_ID)
    xq, lq = sample(ids, 6)
    xg, lg = sample(ids, 6)
    d = torch.cdist(model(xq), model(xg))
    hit = (lg[d.argmin(1)] == lq).float().mean().item()
    model.train()
    return 1.0 - hit


def main():
    model = ReID()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
    for it in range(ITERS):
        ids = torch.randperm(N_ID)[:P]
        x, lab = sample(ids, K)
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            e = model(x)
            loss = batch_hard(e, lab)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        if it % 25 == 0:
            print(f"[{it:4d}/{ITERS}] triplet {loss.item():.4f}")
    print(f"rank1_error {evaluate(model):.4f}")


if __name__ == "__main__":
    main()
