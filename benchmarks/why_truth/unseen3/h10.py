"""REINFORCE with baseline on a corridor task: rare huge rewards, negative and spiky losses, BF16."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corridor:
    """7 cells; right end +10 (sometimes +200 jackpot), left end -1"""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.pos, self.t = 3, 0
        return self.obs()

    def obs(self):
        v = np.zeros(8, np.float32)
        v[self.pos] = 1
        v[7] = self.t / 20
        return v

    def step(self, a):
        self.pos += 1 if a == 1 else -1
        self.t += 1
        if self.pos == 6:
            return self.obs(), 200.0 if self.rng.random() < 0.03 else 10.0, True
        if self.pos == 0:
            return self.obs(), -1.0, True
        return self.obs(), -0.1, self.t >= 20


class ActorCritic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        self.pi = nn.Linear(width, 2)
        self.v = nn.Linear(width, 1)

    def forward(self, o):
        h = self.body(o)
        return self.pi(h).float(), self.v(h).float().squeeze(-1)


def rollout(env, model):
    obs, acts, rews, o, done = [], [], [], env.reset(), False
    while not done:
        with torch.no_grad():
            p = F.softmax(model(torch.from_numpy(o)[None])[0][0], -1).numpy()
        a = int(env.rng.random() < p[1])
        obs.append(o)
        acts.append(a)
        o, r, done = env.step(a)
        rews.append(r)
    ret = np.cumsum(np.array(rews)[::-1])[::-1]
    return np.array(obs), acts, ret.copy(), sum(rews)


def main():
    torch.manual_seed(0)
    env, model = Corridor(0), ActorCritic()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    wins = []
    for it in range(120):
        eps = [rollout(env, model) for _ in range(6)]
        o = torch.from_numpy(np.concatenate([e[0] for e in eps]))
        a = torch.tensor(sum((e[1] for e in eps), []))
        R = torch.tensor(np.concatenate([e[2] for e in eps]), dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, v = model(o)
        adv = R - v.detach()
        adv = ((adv - adv.mean()) / (adv.std() + 1e-4)).clamp(-3, 3)
        logp = F.log_softmax(logits, -1)
        ent = -(logp.exp() * logp).sum(-1).mean()
        loss = -(logp.gather(1, a[:, None]).squeeze(1) * adv).mean() + 0.05 * F.mse_loss(v, R) - 0.01 * ent
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        wins += [float(e[3] > 5) for e in eps]
        if it % 10 == 0:
            print(f"iter {it} loss {loss.item():.3f} mean return {np.mean([e[3] for e in eps]):.2f} entropy {ent.item():.3f}")
    print(f"final win rate {np.mean(wins[-120:]):.4f}")


if __name__ == "__main__":
    main()
