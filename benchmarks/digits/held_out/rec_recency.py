"""Sequential recommender: history items are weighted by a learnt recency decay over event timestamps (in days)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RecencyPooling(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.log_rate = nn.Parameter(torch.tensor(-1.0))
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, items, event_day, now_day):
        content = self.score(items).squeeze(-1)
        age = now_day.to(content.dtype)[:, None] - event_day.to(content.dtype)  # guilty
        weight = torch.softmax(content - torch.exp(self.log_rate) * age, dim=-1)
        pooled = (weight.unsqueeze(-1) * items).sum(dim=1)
        return pooled


class SeqRec(nn.Module):
    def __init__(self, n_items=200, n_users=50, dim=32):
        super().__init__()
        self.item = nn.Embedding(n_items, dim)
        self.user = nn.Embedding(n_users, dim)
        self.pool = RecencyPooling(dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, user, history, event_day, now_day):
        h = self.item(history)
        pooled = self.pool(h, event_day, now_day)
        query = self.mix(torch.cat([pooled, self.user(user)], dim=-1))
        return query @ self.item.weight.t()


def loss_fn(model, batch):
    logits = model(batch["user"], batch["history"], batch["event_day"], batch["now_day"])
    return F.cross_entropy(logits.float(), batch["target"])


def make():
    torch.manual_seed(13)
    model = SeqRec()
    B, L = 32, 20
    now = 1200.0 + 40.0 * torch.rand(B)  # days since launch of the shop
    gaps = -torch.log(torch.rand(B, L)) * 0.6
    event = now[:, None] - gaps.cumsum(dim=1)
    batch = {
        "user": torch.randint(0, 50, (B,)),
        "history": torch.randint(0, 200, (B, L)),
        "event_day": event,
        "now_day": now,
        "target": torch.randint(0, 200, (B,)),
    }
    return model, loss_fn, batch
