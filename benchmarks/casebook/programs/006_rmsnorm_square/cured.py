import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        ms = x.float().pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.weight


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(20, 64)
        self.norm = RMSNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.norm(self.proj(x)))


torch.manual_seed(42)
centers = torch.randn(10, 20) * 900  # raw sensor counts
labels = torch.randint(0, 10, (1024,))
data = centers[labels] + torch.randn(1024, 20) * 200
model = Classifier()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(3):
    for i in range(0, 1024, 64):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(data[i : i + 64]), labels[i : i + 64])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(f"epoch={epoch} loss={loss.item():.3f}")
