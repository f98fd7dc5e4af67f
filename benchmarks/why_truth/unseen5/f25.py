"""Metric learning: batch-hard triplet loss on synthetic identities, recall@1."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(25)
P, K, DIM, IDS = 12, 4, 48, 60


class Identities:
    def __init__(self):
        self.centers = torch.randn(IDS, 12)
        self.mix = torch.randn(12, DIM)
        self.nuisance = 2.0 * torch.randn(10, DIM)

    def draw(self, ids):
        n = len(ids)
        x = self.centers[ids] @ self.mix * 0.5 + torch.randn(n, 10) @ self.nuisance
        return x + 0.3 * torch.randn(n, DIM)


def pairwise_distances(e):
    dot = e @ e.t()
    sq = dot.diagonal()
    d2 = sq[:, None] + sq[None, :] - 2.0 * dot
    return d2.clamp(min=0.0).sqrt()


def batch_hard(e, labels, margin=0.3):
    dist = pairwise_distances(e)
    same = labels[:, None] == labels[None, :]
    hardest_pos = (dist * same).amax(1)
    hardest_neg = (dist + 10.0 * same).amin(1)
    return F.relu(hardest_pos - hardest_neg + margin).mean()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 24))

    def forward(self, x):
        return F.normalize(self.net(x).float(), dim=1)


@torch.no_grad()
def recall_at_1(model, data, ids):
    q, g = data.draw(ids), data.draw(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eq, eg = model(q), model(g)
    nn_idx = (eq.float() @ eg.float().t()).argmax(1)
    return (ids[nn_idx] == ids).float().mean().item()


def main():
    data = Identities()
    model = Embedder()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    held = torch.arange(40, 60).repeat(10)
    for step in range(300):
        ids = torch.randperm(40)[:P].repeat_interleave(K)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            emb = model(data.draw(ids))
            loss = batch_hard(emb, ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            print(f"step {step} triplet {loss.item():.4f}")
    print(f"val_recall {recall_at_1(model, data, held):.4f}")


if __name__ == "__main__":
    main()
