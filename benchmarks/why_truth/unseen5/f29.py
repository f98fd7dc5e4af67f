"""Offline DQN on a grid world with a Polyak-averaged target network."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)
SIZE, GAMMA, TAU = 7, 0.95, 0.01
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
GOAL = torch.tensor([SIZE - 1, SIZE - 1])


def step_env(pos, act):
    nxt = (pos + MOVES[act]).clamp(0, SIZE - 1)
    done = (nxt == GOAL).all(-1)
    return nxt, done.float(), done


def encode(pos):
    return torch.cat([F.one_hot(pos[..., 0], SIZE), F.one_hot(pos[..., 1], SIZE)], -1).float()


def collect(n):
    pos = torch.randint(SIZE, (n, 2))
    act = torch.randint(4, (n,))
    nxt, rew, done = step_env(pos, act)
    return pos, act, rew, nxt, done.float()


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * SIZE, 64), nn.ReLU(),
                                  nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, s):
        return self.body(s)


class Agent:
    def __init__(self):
        self.q = QNet()
        self.target = copy.deepcopy(self.q).to(torch.bfloat16).requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-3)

    @torch.no_grad()
    def sync(self):
        for t, p in zip(self.target.parameters(), self.q.parameters()):
            t.lerp_(p.to(t.dtype), TAU)

    def update(self, pos, act, rew, nxt, done):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                boot = self.target(encode(nxt)).float().amax(1)
                goal = rew + GAMMA * (1.0 - done) * boot
            value = self.q(encode(pos)).float().gather(1, act[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(value, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sync()
        return loss.item()

    @torch.no_grad()
    def rollout(self, horizon=14):
        pos = torch.cartesian_prod(torch.arange(SIZE), torch.arange(SIZE))[:-1]
        ret = torch.zeros(len(pos))
        alive = torch.ones(len(pos), dtype=torch.bool)
        for k in range(horizon):
            nxt, rew, done = step_env(pos, self.q(encode(pos)).argmax(1))
            ret += alive * rew * GAMMA ** k
            alive &= ~done
            pos = nxt
        return ret.mean().item()


def main():
    buf = collect(8000)
    agent = Agent()
    for it in range(1500):
        i = torch.randint(8000, (128,))
        loss = agent.update(*(b[i] for b in buf))
        if it % 250 == 0:
            print(f"it {it} td {loss:.5f} return {agent.rollout():.3f}")
    print(f"val_return {agent.rollout():.4f}")


if __name__ == "__main__":
    main()
