import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
VOCAB, BATCH, SEQ = 16, 1280, 60
emb = nn.Embedding(VOCAB, 8)
out = nn.Linear(8, VOCAB)
opt = torch.optim.SGD([*emb.parameters(), *out.parameters()], lr=2.0)


def lm_loss(logits, target, mask):
    nll = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none")
    nll = nll.view_as(target).to(logits.dtype)
    mask = mask.to(logits.dtype)
    return (nll * mask).sum(dtype=torch.float32) / mask.sum()


for step in range(16):
    seq = (torch.arange(SEQ + 1) + torch.randint(0, VOCAB, (BATCH, 1))) % VOCAB
    mask = torch.rand(BATCH, SEQ) < 0.95
    with torch.autocast("cpu", dtype=torch.float16):
        logits = out(emb(seq[:, :-1]))
        loss = lm_loss(logits, seq[:, 1:], mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.4f}")
