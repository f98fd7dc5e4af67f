"""Entity-masked language modelling on a toy grammar, driven by accelerate."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(6)
VOCAB, LEN, MASK = 64, 12, 1
ENT_LO, ENT_HI = 40, 64


class Sentences(Dataset):
    """Ids 2..39 are ordinary words, 40..63 are entity names fixed by the word before them."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, ENT_LO, (n, LEN), generator=g)
        for k in range(n):
            if torch.rand((), generator=g) < 0.7:
                at = int(torch.randint(1, LEN, (), generator=g))
                ids[k, at] = ENT_LO + ids[k, at - 1] % (ENT_HI - ENT_LO)
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, k):
        return self.ids[k]


def collate(rows):
    ids = torch.stack(rows)
    pick = (ids >= ENT_LO) & (torch.rand(ids.shape) < 0.6)
    return ids.masked_fill(pick, MASK), ids, pick.float()


class MLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Parameter(torch.randn(LEN, d) * 0.1)
        self.mix = nn.Conv1d(d, d, 3, padding=1)
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.out(h + self.ff(self.norm(h)))


def main():
    acc = Accelerator(cpu=True, mixed_precision="bf16")
    loader = DataLoader(Sentences(3600, 1), batch_size=6, shuffle=True, collate_fn=collate)
    model = MLM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, opt, loader = acc.prepare(model, opt, loader)
    for epoch in range(1):
        for k, (ids, labels, weight) in enumerate(loader):
            with acc.autocast():
                logits = model(ids)
            nll = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
            loss = (nll * weight).sum() / weight.sum()
            opt.zero_grad()
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if k % 50 == 0:
                print(f"epoch {epoch} batch {k} loss {loss.item():.4f}")
    ids = Sentences(600, 2).ids
    pick = ids >= ENT_LO
    with torch.no_grad(), acc.autocast():
        pred = model(ids.masked_fill(pick, MASK)).argmax(-1)
    print(f"entity_acc {(pred == ids)[pick].float().mean().item():.4f}")


if __name__ == "__main__":
    main()
