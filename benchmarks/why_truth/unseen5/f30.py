"""Entity tagging with sparse span labels, Accelerate bf16, cosine schedule."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

IGNORE = -100


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(5, (120,), generator=torch.Generator().manual_seed(77))
    ids = torch.randint(120, (n, 24), generator=g)
    prev = torch.roll(ids, 1, dims=1)
    tags = torch.where(prev % 4 == 0, (table[ids] + 1) % 5, table[ids])
    labels = torch.where(torch.rand(n, 24, generator=g) < 0.6, tags, torch.full_like(tags, IGNORE))
    annotated = torch.rand(n, 1, generator=g) < 0.40
    return ids, torch.where(annotated, labels, torch.full_like(labels, IGNORE))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(120, 48)
        self.conv = nn.Conv1d(48, 64, 3, padding=1)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 5)

    def forward(self, ids):
        h = self.conv(self.emb(ids).transpose(1, 2)).transpose(1, 2)
        return self.out(F.gelu(self.norm(h)))


def token_loss(logits, labels):
    mask = (labels != IGNORE).float()
    nll = F.cross_entropy(logits.float().transpose(1, 2), labels.clamp(min=0), reduction="none")
    return (nll * mask).sum() / mask.sum()


def accuracy(model, loader):
    model.eval()
    hit = n = 0
    with torch.no_grad():
        for ids, labels in loader:
            m = labels != IGNORE
            hit += (model(ids).argmax(-1)[m] == labels[m]).sum().item()
            n += m.sum().item()
    model.train()
    return hit / n


def main():
    torch.manual_seed(30)
    acc = Accelerator(mixed_precision="bf16", cpu=True)
    train = DataLoader(TensorDataset(*corpus(1600, 1)), batch_size=8, shuffle=True)
    val = DataLoader(TensorDataset(*corpus(400, 2)), batch_size=100)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3 * len(train))
    model, opt, train, val, sched = acc.prepare(model, opt, train, val, sched)
    step = 0
    for epoch in range(3):
        for ids, labels in train:
            with acc.autocast():
                loss = token_loss(model(ids), labels)
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
    print(f"val_acc {accuracy(model, val):.4f}")


if __name__ == "__main__":
    main()
