"""Character-level language model (GRU) with gradient accumulation and an OOM guard."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "run", "over", "hill"]


def make_corpus(n_words, seed=0):
    g = torch.Generator().manual_seed(seed)
    w, out = 0, []
    for _ in range(n_words):
        w = (w * 3 + 1 + int(torch.randint(0, 2, (1,), generator=g))) % len(WORDS)
        out.append(WORDS[w])
    return " ".join(out)


class CharLM(nn.Module):
    def __init__(self, vocab, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def batches(ids, bs, seq, steps, g):
    for _ in range(steps):
        s = torch.randint(0, len(ids) - seq - 1, (bs,), generator=g)
        yield (torch.stack([ids[i:i + seq] for i in s]), torch.stack([ids[i + 1:i + seq + 1] for i in s]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--fp16", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = make_corpus(3000)
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text])
    model = CharLM(len(chars)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0, enabled=bool(args.fp16))
    losses, skipped = [], 0
    for i, (x, y) in enumerate(batches(ids, 16, 24, args.steps, g)):
        x, y = x.to(device), y.to(device)
        try:
            with torch.autocast(device, dtype=torch.float16, enabled=bool(args.fp16)):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accum
            scaler.scale(loss).backward()
            losses.append(loss.item() * args.accum)
            if (i + 1) % args.accum == 0:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(opt)
                opt.zero_grad(set_to_none=True)
            if (i + 1) == args.steps:
                scaler.update()
        except RuntimeError:
            # out of memory on a long batch: drop it and go on
            skipped += 1
            opt.zero_grad(set_to_none=True)
        if (i + 1) % 40 == 0:
            print(f"step {i + 1} loss {sum(losses[-40:]) / 40:.4f}")


if __name__ == "__main__":
    main()
