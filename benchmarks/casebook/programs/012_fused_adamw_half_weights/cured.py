import torch
from torch import nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(24, 20)
        self.logits = nn.Linear(20, 6)

    def forward(self, obs):
        return self.logits(torch.tanh(self.body(obs)))


torch.manual_seed(9)
policy = Policy()
before = [p.detach().float().clone() for p in policy.parameters()]
optim = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
amp = torch.amp.GradScaler("cpu", init_scale=512.0)

obs = torch.randn(256, 24)
expert = (obs[:, :6] * 2).argmax(-1)
for update in range(60):
    with torch.autocast("cpu", torch.float16):
        out = policy(obs.to(policy.body.weight.dtype))
    loss = F.cross_entropy(out.float(), expert)
    optim.zero_grad()
    amp.scale(loss).backward()
    amp.step(optim)
    amp.update()
    if update % 10 == 0:
        print("update", update, "bc loss %.5f" % loss.item())

changed = sum((p.float() != b).sum().item() for p, b in zip(policy.parameters(), before))
print("moved", changed, "of", sum(p.numel() for p in policy.parameters()), "weights")
