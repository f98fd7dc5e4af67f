"""REINFORCE on a five-armed bandit with contexts, in BF16; rewards are heavy-tailed."""
import torch
import torch.nn as nn

torch.manual_seed(4)
ARMS, CONTEXT = 5, 4
STEPS = 200
BATCH = 64
weights = torch.randn(CONTEXT, ARMS)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(CONTEXT, 32), nn.Tanh(), nn.Linear(32, ARMS))

    def forward(self, c):
        return self.net(c)


def pull(context, arm):
    mean = (context @ weights).gather(1, arm[:, None]).squeeze(1)
    noise = torch.distributions.StudentT(3.0).sample(mean.shape)
    return mean + noise


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
baseline = 0.0
average = 0.0

for step in range(STEPS):
    context = torch.randn(BATCH, CONTEXT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = policy(context)
    distribution = torch.distributions.Categorical(logits=logits.float())
    arm = distribution.sample()
    reward = pull(context, arm)
    advantage = (reward - baseline).clamp(-5, 5)
    loss = -(advantage * distribution.log_prob(arm)).mean() - 0.01 * distribution.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    baseline = 0.95 * baseline + 0.05 * reward.mean().item()
    average = 0.95 * average + 0.05 * reward.mean().item()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():+.4f} average reward {average:.4f}")
