"""DQN on a corridor world: reward sits at the far end, a small lure at the start."""
import collections
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH, GAMMA, TAU, BATCH, STEPS = 14, 0.95, 0.005, 64, 4000
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Corridor:
    """Actions: 0 left, 1 right, 2 take the lure (ends the episode)."""

    def reset(self):
        self.pos, self.t = 0, 0
        return self.pos

    def step(self, a):
        self.t += 1
        if a == 2:
            return self.pos, 0.2, True
        self.pos = max(0, self.pos - 1) if a == 0 else self.pos + 1
        if self.pos == LENGTH - 1:
            return self.pos, 1.0, True
        return self.pos, 0.0, self.t >= 60


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LENGTH, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, pos):
        return self.net(F.one_hot(pos, LENGTH).to(self.net[0].weight.dtype))


class Agent:
    def __init__(self):
        self.online = QNet()
        self.target = QNet()
        self.target.load_state_dict(self.online.state_dict())
        self.target.to(torch.bfloat16).requires_grad_(False)
        self.opt = torch.optim.Adam(self.online.parameters(), lr=2e-3)

    def act(self, s, eps):
        if random.random() < eps:
            return random.choices([0, 1, 2], weights=[4, 5, 1])[0]
        with torch.no_grad():
            return int(self.online(torch.tensor([s])).argmax())

    def sync(self):
        with torch.no_grad():
            for t, p in zip(self.target.parameters(), self.online.parameters()):
                t.lerp_(p.to(t.dtype), TAU)

    def learn(self, batch):
        s, a, r, s2, d = (torch.tensor(col) for col in zip(*batch))
        with torch.no_grad():
            nxt = self.target(s2).float().amax(1)
            y = r.float() + GAMMA * (~d).float() * nxt
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q = self.online(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q.float(), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sync()
        return loss.item()


def evaluate(agent):
    total = 0.0
    for start in range(LENGTH - 1):
        env = Corridor()
        env.reset()
        env.pos, done, disc = start, False, 1.0
        while not done:
            s, r, done = env.step(agent.act(env.pos, 0.0))
            total += disc * r
            disc *= GAMMA
    return total / (LENGTH - 1)


agent, env = Agent(), Corridor()
memory = collections.deque(maxlen=20000)
s = env.reset()
for step in range(STEPS):
    if random.random() < 0.1:
        env.pos = s = random.randrange(LENGTH - 1)
    a = agent.act(s, max(0.3, 1 - step / 2000))
    s2, r, done = env.step(a)
    memory.append((s, a, float(r), s2, done and env.t < 60))
    s = env.reset() if done else s2
    if len(memory) >= 500:
        loss = agent.learn(random.sample(memory, BATCH))
        if step % 1000 == 999:
            print(f"step {step + 1} loss {loss:.5f}")

print(f"mean_return {evaluate(agent):.4f}")
