"""Small language model, pure half: weights, gradients and Adam states."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

BLOCK, VOCAB, DIM = 16, 32, 48


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(BLOCK, DIM)
        self.mix = nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, idx):
        pos = torch.arange(idx.shape[1])
        h = self.tok(idx) + self.pos(pos)
        past = torch.cumsum(self.mix(h), dim=1) / (pos + 1).to(h.dtype)[:, None]
        h = h + past
        h = h + self.ff(h)
        return self.head(self.ln(h))


def make_corpus(n=6000):
    g = torch.Generator().manual_seed(7)
    trans = torch.softmax(3 * torch.randn(VOCAB, VOCAB, generator=g), -1)
    out = [0]
    for _ in range(n):
        out.append(torch.multinomial(trans[out[-1]], 1, generator=g).item())
    return torch.tensor(out)


def get_batch(corpus, bs=16):
    start = torch.randint(0, len(corpus) - BLOCK - 1, (bs,))
    x = torch.stack([corpus[s:s + BLOCK] for s in start])
    y = torch.stack([corpus[s + 1:s + BLOCK + 1] for s in start])
    return x, y


corpus = make_corpus()
model = CharLM().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
log = []
for step in range(150):
    x, y = get_batch(corpus)
    logits = model(x)
    loss = F.cross_entropy(logits.float().view(-1, VOCAB), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.append(loss.item())
    if step % 15 == 0:
        print(f"step {step:3d} | loss {loss.item():.4f}")
print("final", sum(log[-10:]) / 10)
