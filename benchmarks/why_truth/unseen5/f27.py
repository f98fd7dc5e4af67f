"""DeepSurv-style survival model on tabular patient data, concordance index."""
import torch
import torch.nn as nn

torch.manual_seed(27)


def cohort(n):
    x = torch.randn(n, 12)
    risk = 2.2 * x[:, 0] - 1.6 * x[:, 1] + 1.5 * torch.sin(2 * x[:, 2]) + 1.2 * x[:, 3] * x[:, 4]
    t = torch.distributions.Exponential(torch.exp(1.5 * risk)).sample()
    c = torch.distributions.Exponential(torch.full((n,), 0.15)).sample()
    return x, torch.minimum(t, c), (t <= c).float()


class RiskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                 nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def cox_loss(risk, time, event):
    order = torch.argsort(time, descending=True)
    risk, event = risk[order], event[order]
    hazard = torch.cumsum(torch.exp(risk), dim=0)
    log_lik = (risk - torch.log(hazard)) * event
    return -log_lik.sum() / event.sum()


def c_index(risk, time, event):
    earlier = (time[:, None] < time[None, :]) & (event[:, None] > 0)
    good = risk[:, None] > risk[None, :]
    return (good & earlier).sum().item() / earlier.sum().item()


def fit(model, train, val, epochs=20, batch=512):
    x, t, e = train
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    for epoch in range(epochs):
        tot = 0.0
        perm = torch.randperm(len(x))
        for i in perm.split(batch):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = cox_loss(model(x[i]), t[i], e[i])
            opt.zero_grad()
            (loss * 256.0).backward()
            for p in model.parameters():
                p.grad.div_(256.0)
            opt.step()
            tot += loss.item()
        if epoch % 4 == 0:
            print(f"epoch {epoch} cox {tot / len(perm.split(batch)):.4f}")
    with torch.no_grad():
        return c_index(model(val[0]), val[1], val[2])


if __name__ == "__main__":
    print(f"val_cindex {fit(RiskNet(), cohort(4096), cohort(800)):.4f}")
