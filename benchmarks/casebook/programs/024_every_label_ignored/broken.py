import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 30
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCAB))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")


def documents():
    """prompt, answer: only the answer is learned; long prompts leave no room for it"""
    g = torch.Generator().manual_seed(1)
    for i in range(60):
        ids = (torch.arange(16) * 3 + torch.randint(0, VOCAB, (1,), generator=g)) % VOCAB
        prompt = int(torch.randint(4, 19, (1,), generator=g))
        labels = ids.clone()
        labels[:prompt] = -100
        yield ids[None], labels[None]


for n, (ids, labels) in enumerate(documents()):
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(ids[:, :-1])
        labels = labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(n, "loss", loss.item(), "scale", scaler.get_scale())
