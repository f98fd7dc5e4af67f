"""Metric learning with batch-hard triplets."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pairwise_distance(emb):
    diff = emb.unsqueeze(0) - emb.unsqueeze(1)
    sq = diff.pow(2).sum(-1)
    return torch.sqrt(sq)


class BatchHardTriplet(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, emb, labels):
        dist = pairwise_distance(emb)
        same = labels[:, None] == labels[None, :]
        hardest_pos = (dist * same).max(dim=1).values
        hardest_neg = (dist + 1e3 * same).min(dim=1).values
        return torch.relu(hardest_pos - hardest_neg + self.margin).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(4))
        self.fc = nn.Linear(64, 16)

    def forward(self, x):
        return self.fc(self.conv(x[:, None]).flatten(1))


def signals(n=640):
    g = torch.Generator().manual_seed(11)
    y = torch.randint(0, 8, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    x = torch.sin(2 * torch.pi * (y[:, None] + 1) * t) + 0.2 * torch.randn(n, 64, generator=g)
    return TensorDataset(x, y)


def run():
    torch.manual_seed(0)
    net = Net()
    criterion = BatchHardTriplet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
    for epoch in range(5):
        losses = []
        for x, y in DataLoader(signals(), batch_size=32, shuffle=True, drop_last=True):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                emb = net(x)
            loss = criterion(emb.float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            losses.append(loss.item())
        sched.step()
        print(f"[{epoch}] triplet loss {sum(losses) / len(losses):.4f} lr {sched.get_last_lr()[0]:.4f}")


if __name__ == "__main__":
    run()
