import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)
DT = torch.float16
NEG = torch.finfo(DT).min


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inp = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def forward(self, x, bias):
        q, k, v = self.inp(x).chunk(3, -1)
        s = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5 + bias
        return x + self.o(s.softmax(-1) @ v)


def build_bias(keep):
    T = keep.size(1)
    causal = torch.zeros(T, T, dtype=DT).masked_fill(torch.ones(T, T).triu(1).bool(), NEG)
    pad = torch.zeros(keep.shape, dtype=DT).masked_fill(~keep, NEG)
    bias = causal[None] + pad[:, None, :] + pad[:, :, None]
    return bias


embed, block, head = nn.Embedding(40, 64), Block(64), nn.Linear(64, 40)
params = [*embed.parameters(), *block.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, 2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(1, 41):
    seq = (torch.arange(13) + torch.randint(0, 40, (24, 1))) % 40
    keep = torch.arange(12) >= torch.randint(0, 6, (24, 1))  # left padding
    with torch.autocast("cpu", DT):
        h = block(embed(seq[:, :-1]), build_bias(keep))
        ce = F.cross_entropy(head(h).float().transpose(1, 2), seq[:, 1:], reduction="none")
        loss = (ce * keep).sum() / keep.sum()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print("step", step, "loss", round(loss.item(), 4))
