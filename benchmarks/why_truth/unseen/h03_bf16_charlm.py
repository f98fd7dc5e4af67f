"""Character GRU under BF16 autocast; hidden state is carried over and detached."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = ("the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. "
        "how vexingly quick daft zebras jump! sphinx of black quartz, judge my vow. ") * 12
CHARS = sorted(set(TEXT))


class CharGRU(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, x, state):
        h, state = self.gru(self.emb(x), state)
        return self.out(h), state


def stream(bs=8, bptt=16):
    ids = torch.tensor([CHARS.index(c) for c in TEXT])
    n = (len(ids) - 1) // bs
    x = ids[: n * bs].view(bs, n)
    y = ids[1: n * bs + 1].view(bs, n)
    for i in range(0, n - bptt, bptt):
        yield x[:, i:i + bptt], y[:, i:i + bptt]


def perplexity(loss):
    return float(torch.exp(torch.tensor(min(loss, 20.0))))


def main():
    torch.manual_seed(0)
    model = CharGRU(len(CHARS))
    opt = torch.optim.RMSprop(model.parameters(), lr=4e-3)
    for epoch in range(12):
        state, losses = None, []
        for x, y in stream():
            if state is not None:
                state = state.detach()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits, state = model(x, state)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch} loss {mean:.4f} ppl {perplexity(mean):.2f}")


if __name__ == "__main__":
    main()
