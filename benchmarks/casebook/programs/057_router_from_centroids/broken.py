import torch
from torch import nn


class RoutedLinear(nn.Module):
    """One expert per cluster; the router starts as k-means, so that argmax is the nearest centroid."""

    def __init__(self, centroids):
        super().__init__()
        k, d = centroids.shape
        self.router = nn.Linear(d, k)
        self.router.weight.data.copy_(centroids)
        self.router.bias.data.copy_(-0.5 * centroids.pow(2).sum(1))
        self.experts = nn.ModuleList(nn.Linear(d, 1) for _ in range(k))

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        out = torch.stack([e((x - 20) * 2) for e in self.experts], 1)
        return out.gather(1, chosen[:, None, None]).squeeze(1)


torch.manual_seed(0)
centroids = 20 + torch.randn(8, 64) * 0.3  # pixel patches, not standardised
w = torch.randn(8, 64, 1)
model = RoutedLinear(centroids)
model.router.requires_grad_(False)
opt = torch.optim.Adam(model.experts.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
recent = []
for step in range(600):
    c = torch.randint(0, 8, (256,))
    x = centroids[c] + torch.randn(256, 64) * 0.1
    y = torch.einsum("nd,ndo->no", x - 20, w[c])
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    recent.append(loss.item())
    if step % 60 == 59:
        print(f"step {step + 1} loss {sum(recent[-20:]) / 20:.4f}")
