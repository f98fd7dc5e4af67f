"""Sentence classifier with attention pooling; sentences have different lengths."""
import torch
from torch import nn
import torch.nn.functional as F

EPOCHS = 4
BATCH = 16
MAX_LEN = 14
VOCAB = 60
CLASSES = 4

torch.manual_seed(3)


def build_corpus(count):
    tokens = torch.zeros(count, MAX_LEN, dtype=torch.long)
    labels = torch.randint(0, CLASSES, (count,))
    # a comment field filled in by customers; its length is what they typed
    lengths = torch.distributions.Poisson(4.0).sample((count,)).long().clamp(max=MAX_LEN)
    for i in range(count):
        n = int(lengths[i])
        words = torch.randint(CLASSES * 5 + 1, VOCAB, (n,))
        topical = torch.rand(n) < 0.7
        words[topical] = labels[i] * 5 + 1 + torch.randint(0, 5, (int(topical.sum()),))
        tokens[i, :n] = words
    return tokens, lengths, labels


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, x, lengths):
        score = self.score(x).squeeze(-1)
        valid = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        score = score.masked_fill(~valid, float("-inf"))
        weight = F.softmax(score, dim=1)
        return (weight.unsqueeze(-1) * x).sum(1)


class Classifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pool = AttentionPool(dim)
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, tokens, lengths):
        return self.out(self.pool(self.embed(tokens), lengths))


def main():
    tokens, lengths, labels = build_corpus(480)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels))
        for start in range(0, len(order), BATCH):
            pick = order[start:start + BATCH]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens[pick], lengths[pick])
                loss = F.cross_entropy(logits, labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print("final loss", loss.item())


if __name__ == "__main__":
    main()
