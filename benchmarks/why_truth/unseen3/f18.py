"""Character model for product codes, trained in two jobs (time limit of the cluster): train, save, resume."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import f18_ckpt as ckpt

VOCAB, CTX = 20, 6


def codes(n, seed):
    rng = np.random.default_rng(seed)
    out = np.zeros((n, CTX + 1), dtype=np.int64)
    out[:, :3] = rng.integers(0, VOCAB, (n, 3))
    for t in range(3, CTX + 1):
        out[:, t] = (out[:, t - 1] + 2 * out[:, t - 3]) % VOCAB
    return torch.from_numpy(out)


class CharMLP(nn.Module):
    """MLP over the context; logits start from the unigram prior of the corpus"""

    def __init__(self, d=12, width=96):
        super().__init__()
        self.register_buffer("counts", torch.ones(VOCAB))
        self.emb = nn.Embedding(VOCAB, d)
        self.fc1 = nn.Linear(CTX * d, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ids):
        h = self.emb(ids).flatten(1)
        h = F.gelu(self.fc1(h))
        h = h + F.gelu(self.fc2(h))
        prior = torch.log(self.counts / self.counts.sum())
        return self.out(h) + prior


def build(total):
    torch.manual_seed(31)
    model = CharMLP()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    return model, opt, sched


def run_job(model, opt, sched, data, start, stop, batch=96):
    for step in range(start, stop):
        g = torch.Generator().manual_seed(1000 + step)
        rows = data[torch.randint(0, len(data), (batch,), generator=g)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(rows[:, :CTX]), rows[:, CTX])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


def val_loss(model, data):
    with torch.no_grad():
        return F.cross_entropy(model(data[:, :CTX]).float(), data[:, CTX]).item()


def main():
    total, half_way = 400, 300
    data, held = codes(200000, 0), codes(1000, 1)
    model, opt, sched = build(total)
    model.counts.copy_(data.flatten().bincount(minlength=VOCAB))
    run_job(model, opt, sched, data, 0, half_way)
    print(f"val loss before checkpoint {val_loss(model, held):.4f}")
    buf = ckpt.save(model, opt, sched, half_way)

    model, opt, sched = build(total)
    start = ckpt.load(buf, model, opt, sched)
    print(f"resumed at step {start}, val loss {val_loss(model, held):.4f}")
    run_job(model, opt, sched, data, start, total)
    print(f"final val loss {val_loss(model, held):.4f}")


if __name__ == "__main__":
    main()
