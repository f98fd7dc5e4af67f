"""Token tagger with a top-1 routed mixture of experts (capacity-based dispatch)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(22)
D, E, NCLS, SEQ, BATCH = 24, 4, 8, 32, 128


class Router(nn.Module):
    def __init__(self, d, e):
        super().__init__()
        self.w = nn.Linear(d, e, bias=False)

    def forward(self, x):
        probs = torch.softmax(self.w(x).float(), dim=-1)
        gate, expert = probs.max(dim=-1)
        balance = E * (probs.mean(0) * F.one_hot(expert, E).float().mean(0)).sum()
        return gate, expert, balance


class Experts(nn.Module):
    def __init__(self, e, d, h):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(e, d, h) / d ** 0.5)
        self.w2 = nn.Parameter(torch.randn(e, h, d) / h ** 0.5)

    def forward(self, x):
        return torch.bmm(F.gelu(torch.bmm(x, self.w1)), self.w2)


class MoELayer(nn.Module):
    def __init__(self, capacity_factor=1.6):
        super().__init__()
        self.router = Router(D, E)
        self.experts = Experts(E, D, 64)
        self.cf = capacity_factor

    def forward(self, x):
        n = x.size(0)
        capacity = int(self.cf * n / E)
        gate, expert, balance = self.router(x)
        mask = F.one_hot(expert, E).to(x.dtype)
        position = (torch.cumsum(mask, dim=0) * mask).sum(-1) - 1
        position = position.long()
        keep = position < capacity
        slot = (expert * capacity + position)[keep]
        buf = x.new_zeros(E * capacity, D)
        buf[slot] = x[keep]
        out = self.experts(buf.view(E, capacity, D)).reshape(E * capacity, D)
        y = torch.zeros_like(x)
        y[keep] = out[slot].to(x.dtype) * gate[keep, None].to(x.dtype)
        return y, balance


class Tagger(nn.Module):
    def __init__(self, vocab=200):
        super().__init__()
        self.emb = nn.Embedding(vocab, D)
        self.inp = nn.Linear(D, D)
        self.moe = MoELayer()
        self.out = nn.Linear(D, NCLS)

    def forward(self, ids):
        x = self.inp(self.emb(ids.flatten()))
        h, balance = self.moe(x)
        return self.out(h), balance


def main():
    table = torch.randint(NCLS, (200,))
    ids = torch.randint(200, (BATCH * 8, SEQ))
    tags = table[ids]
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(90):
        i = torch.randint(BATCH * 7, (BATCH,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, balance = model(ids[i])
        loss = F.cross_entropy(logits.float(), tags[i].flatten()) + 0.02 * balance
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} balance {balance.item():.3f}")
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(ids[-BATCH:])
    acc = (logits.argmax(-1) == tags[-BATCH:].flatten()).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
