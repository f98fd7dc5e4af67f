"""Matrix-factorisation recommender kept entirely in half precision."""
import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(11)
torch.manual_seed(11)
N_USERS, N_ITEMS, RANK = 400, 250, 6


def simulate():
    u = rng.normal(0, 0.6, (N_USERS, RANK))
    v = rng.normal(0, 0.6, (N_ITEMS, RANK))
    users = rng.integers(0, N_USERS, 24000)
    items = rng.integers(0, N_ITEMS, 24000)
    score = (u[users] * v[items]).sum(1) + rng.normal(0, 0.15, users.shape)
    return torch.tensor(users), torch.tensor(items), torch.tensor(score, dtype=torch.float32)


class MF(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.user = nn.Embedding(N_USERS, dim)
        self.item = nn.Embedding(N_ITEMS, dim)
        self.user_bias = nn.Embedding(N_USERS, 1)
        self.item_bias = nn.Embedding(N_ITEMS, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.2)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


class Recommender:
    def __init__(self, lr=1e-2, batch_size=512, loss_scale=512.0):
        self.net = MF().half()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.batch_size = batch_size
        self.loss_scale = loss_scale

    def fit(self, users, items, score, epochs=8):
        for epoch in range(epochs):
            order = torch.randperm(len(users))
            losses = []
            for idx in order.split(self.batch_size):
                pred = self.net(users[idx], items[idx])
                loss = (pred.float() - score[idx]).pow(2).mean()
                self.opt.zero_grad()
                (loss * self.loss_scale).backward()
                self.opt.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: train mse {np.mean(losses):.4f}")

    @torch.no_grad()
    def rmse(self, users, items, score):
        pred = self.net(users, items).float()
        return (pred - score).pow(2).mean().sqrt().item()


def main():
    users, items, score = simulate()
    cut = 20000
    rec = Recommender()
    rec.fit(users[:cut], items[:cut], score[:cut])
    print(f"val_rmse {rec.rmse(users[cut:], items[cut:], score[cut:]):.4f}")


if __name__ == "__main__":
    main()
