"""Policy gradient on a contextual bandit with invalid-action masking, bf16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
CTX, ACTIONS, ROUNDS = 16, 12, 400


class Bandit:
    def __init__(self):
        self.w = torch.randn(CTX, ACTIONS)

    def reset(self, n):
        ctx = torch.randn(n, CTX)
        valid = torch.rand(n, ACTIONS) < 0.6
        valid[torch.arange(n), torch.randint(ACTIONS, (n,))] = True
        return ctx, valid

    def value(self, ctx):
        return torch.sigmoid(ctx @ self.w)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(CTX, 96), nn.ReLU(), nn.Linear(96, ACTIONS))

    def forward(self, ctx, valid):
        logits = self.net(ctx).float()
        return logits.masked_fill(~valid, float("-inf"))


def score(policy, env, n=2000):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        ctx, valid = env.reset(n)
        pick = policy(ctx, valid).argmax(1)
    v = env.value(ctx)
    best = v.masked_fill(~valid, -1.0).amax(1)
    return (v.gather(1, pick[:, None]).squeeze(1) / best).mean().item()


def main():
    env, policy = Bandit(), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    baseline = 0.5
    for it in range(ROUNDS):
        ctx, valid = env.reset(256)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = policy(ctx, valid)
        logp = F.log_softmax(logits, dim=1)
        probs = logp.exp()
        act = torch.multinomial(probs, 1)
        reward = env.value(ctx).gather(1, act).squeeze(1)
        adv = reward - baseline
        baseline = 0.95 * baseline + 0.05 * reward.mean().item()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        entropy = -(probs * torch.log(probs.clamp(min=1e-12))).sum(1).mean()
        loss = -(logp.gather(1, act).squeeze(1) * adv).mean() - 0.005 * entropy
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 100 == 0:
            print(f"it {it} reward {reward.mean().item():.4f} entropy {entropy.item():.3f}")
    print(f"val_score {score(policy, env):.4f}")


if __name__ == "__main__":
    main()
