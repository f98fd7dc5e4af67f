"""Behaviour cloning of a cart controller; GRU-free policy on stacked observations, FP16."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def rollouts(n_ep, seed, horizon=40):
    rng = np.random.default_rng(seed)
    obs, act = [], []
    for _ in range(n_ep):
        s = rng.uniform(-1, 1, 4)
        hist = [s] * 3
        for _ in range(horizon):
            u = np.clip(-1.2 * s[0] - 0.8 * s[1] - 2.0 * s[2] - 0.6 * s[3], -1, 1)
            obs.append(np.concatenate(hist))
            act.append(u)
            s = s + 0.05 * np.array([s[1], u, s[3], 1.5 * s[2] + u]) + 0.01 * rng.standard_normal(4)
            hist = hist[1:] + [s]
    return torch.tensor(np.array(obs), dtype=torch.float32), torch.tensor(np.array(act), dtype=torch.float32)


class Policy(nn.Module):
    def __init__(self, n_obs=12, width=48):
        super().__init__()
        self.l1 = nn.Linear(n_obs, width)
        self.l2 = nn.Linear(width, width)
        self.mu = nn.Linear(width, 1)

    def forward(self, o):
        h = F.elu(self.l1(o))
        h = F.elu(self.l2(h))
        return torch.tanh(self.mu(h)).squeeze(-1)


class Cloner:
    def __init__(self, lr=2e-3):
        self.policy = Policy().half()
        self.opt = torch.optim.SGD(self.policy.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def update(self, obs, act):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.policy(obs)
            loss = F.mse_loss(pred.float(), act)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()

    @torch.no_grad()
    def mse(self, obs, act):
        dt = next(self.policy.parameters()).dtype
        return F.mse_loss(self.policy(obs.to(dt)).float(), act).item()


def main():
    torch.manual_seed(1)
    obs, act = rollouts(40, 0)
    vo, va = rollouts(10, 1)
    agent = Cloner()
    for step in range(200):
        i = torch.randint(0, len(obs), (32,))
        loss = agent.update(obs[i], act[i])
        if step % 20 == 0:
            print(f"step {step} loss {loss:.5f} val {agent.mse(vo, va):.5f}")
    print(f"final val mse {agent.mse(vo, va):.5f}")


if __name__ == "__main__":
    main()
