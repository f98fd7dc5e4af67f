"""REINFORCE with action masking on a little "collect the right coin" game.

Policy loss has no meaningful level: it crosses zero and jumps. Watch the return."""
import os
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

SEED = 7
np.random.seed(SEED)
torch.manual_seed(SEED)
AMP = not bool(int(os.getenv("FP32", "0")))
N_ENV, HORIZON, N_ACT, OBS = 96, 9, 6, 10
W = torch.from_numpy(np.random.randn(OBS, N_ACT).astype(np.float32))   # hidden rule


class EpisodeDone(StopIteration):
    pass


class CoinEnv:
    """vectorised; each step an observation, a legality mask, best legal action pays 1"""

    def reset(self):
        self.t = 0
        return self._obs()

    def _obs(self):
        self.o = torch.randn(N_ENV, OBS)
        legal = torch.rand(N_ENV, N_ACT) > 0.35
        legal[torch.arange(N_ENV), torch.randint(0, N_ACT, (N_ENV,))] = True   # at least one legal move
        self.legal = legal
        return self.o, legal

    def step(self, a):
        score = (self.o @ W).masked_fill(~self.legal, -float("inf"))
        r = (score.argmax(1) == a).float()
        self.t += 1
        if self.t > HORIZON:
            raise EpisodeDone
        return self._obs(), r


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, N_ACT)
        self.v = nn.Linear(64, 1)
        nn.init.zeros_(self.pi.weight)          # start from the uniform policy
        nn.init.zeros_(self.pi.bias)

    def forward(self, o, legal):
        h = self.body(o)
        logits = self.pi(h).float().masked_fill(~legal, float("-inf"))
        return logits, self.v(h).float().squeeze(-1)


net, env = ActorCritic(), CoinEnv()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
history = []
for episode in range(120):
    for grp in opt.param_groups:
        grp["lr"] = 4e-3 * (1 - episode / 130)
    (o, legal), logps, vals, rews, ents = env.reset(), [], [], [], []
    while True:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AMP):
            logits, v = net(o, legal)
        dist = Categorical(logits=logits)
        a = dist.sample()
        try:
            (o, legal), r = env.step(a)
        except EpisodeDone:
            break
        logps.append(dist.log_prob(a))
        # p*log p with p = 0 would be nan: guard the -inf first
        lp = torch.where(logits == -float("inf"), torch.zeros_like(logits), logits.log_softmax(-1))
        lp = lp.masked_fill(logits == -float("inf"), 0.0)
        ents.append(-(dist.probs * lp).sum(-1))
        vals.append(v)
        rews.append(r)
    R = torch.stack(rews)                       # actions do not influence later states: gamma = 0
    V = torch.stack(vals)
    adv = R - V.detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    pg = -(torch.stack(logps) * adv).mean()
    loss = pg + 0.5 * (R - V).square().mean() - 1e-3 * torch.stack(ents).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    history.append(R.mean().item())
    if episode % 20 == 0:
        print(f"ep {episode:3d} pg {pg.item():+.4f} loss {loss.item():+.4f} return {history[-1]:.3f}")

with torch.no_grad():
    hits = []
    for _ in range(60):
        o, legal = env.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AMP):
            lg, _ = net(o, legal)
        _, r = env.step(lg.argmax(1))
        hits.append(r.mean())
print(f"greedy return per step: {torch.stack(hits).mean().item():.4f}")
