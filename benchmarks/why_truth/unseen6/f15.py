"""REINFORCE with baseline on a small corridor, actor-critic net under bf16 autocast."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
rng = np.random.default_rng(6)


class Corridor:
    """Walk right to the goal; action 2 is a risky jump which may end the episode."""
    n_actions = 3
    size = 8

    def reset(self):
        self.pos, self.t = 1, 0
        return self.obs()

    def obs(self):
        o = np.zeros(self.size + 1, dtype=np.float32)
        o[self.pos] = 1.0
        o[-1] = self.t / 30
        return o

    def step(self, a):
        self.t += 1
        done, r = False, -0.05
        if a == 0:
            self.pos = max(0, self.pos - 1)
        elif a == 1:
            self.pos += 1
        else:
            if rng.random() < 0.02:
                return self.obs(), -1.0, True
            self.pos += 2 if rng.random() < 0.5 else 0
        if self.pos >= self.size - 1:
            self.pos, done, r = self.size - 1, True, 1.0
        return self.obs(), r, done or self.t >= 30


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(Corridor.size + 1, 64), nn.Tanh())
        self.pi = nn.Linear(64, Corridor.n_actions)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h).float(), self.v(h).float().squeeze(-1)


def rollout(net, env):
    obs, acts, rews = [], [], []
    o, done = env.reset(), False
    while not done:
        with torch.no_grad():
            logits, _ = net(torch.from_numpy(o)[None])
        p = torch.softmax(logits[0], -1).double().numpy()
        a = int(np.searchsorted(np.cumsum(p), rng.random()).clip(0, 2))
        obs.append(o)
        acts.append(a)
        o, r, done = env.step(a)
        rews.append(r)
    return np.stack(obs), np.array(acts), np.array(rews)


def discounted(r, gamma=0.97):
    out, acc = np.zeros_like(r), 0.0
    for i in reversed(range(len(r))):
        acc = r[i] + gamma * acc
        out[i] = acc
    return out.astype(np.float32)


def main():
    env, net = Corridor(), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    hist = []
    for ep in range(600):
        obs, acts, rews = rollout(net, env)
        ret = torch.from_numpy(discounted(rews))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, value = net(torch.from_numpy(obs))
        adv = ret - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        logp = F.log_softmax(logits, -1)
        chosen = logp.gather(1, torch.from_numpy(acts)[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(1).mean()
        loss = -(chosen * adv).mean() + 0.5 * F.mse_loss(value, ret) - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        hist.append(rews.sum())
        if ep % 50 == 0:
            print(f"ep {ep} loss {loss.item():.4f} return {np.mean(hist[-50:]):.3f}")
    print(f"mean_return {np.mean(hist[-100:]):.4f}")


if __name__ == "__main__":
    main()
