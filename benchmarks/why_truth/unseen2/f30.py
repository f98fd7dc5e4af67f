"""Policy gradient on a contextual bandit with an entropy bonus."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=160)
ap.add_argument("--batch", type=int, default=48)
ap.add_argument("--lr", type=float, default=2e-2)
ap.add_argument("--entropy", type=float, default=0.001)
args = ap.parse_args()

torch.manual_seed(12)
CONTEXT, ACTIONS = 6, 5
truth = torch.randn(CONTEXT, ACTIONS)


class Policy(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(CONTEXT, hidden), nn.ReLU(), nn.Linear(hidden, ACTIONS))

    def forward(self, context):
        return self.net(context)


def entropy_of(logits):
    p = F.softmax(logits, dim=-1)
    return -(p * torch.log(p)).sum(-1).mean()


def reward_of(context, action):
    value = context @ truth
    best = value.max(-1).values
    chosen = value.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return chosen - best


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
baseline = 0.0

for step in range(args.steps):
    context = 2.0 * torch.randn(args.batch, CONTEXT)
    with torch.no_grad():
        action = torch.distributions.Categorical(logits=policy(context)).sample()
    reward = reward_of(context, action)
    advantage = reward - baseline
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()

    with torch.autocast("cpu", dtype=torch.float16):
        logits = policy(context)
        log_prob = F.log_softmax(logits.float(), dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        loss = -(advantage * log_prob).mean() - args.entropy * entropy_of(logits)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:3d} loss {loss.item():.4f} reward {reward.mean().item():.3f} scale {scaler.get_scale():g}")
