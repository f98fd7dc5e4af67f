"""Contextual bandit: policy and baseline with separate optimizers under one scaler."""
import torch
import torch.nn as nn

torch.manual_seed(19)
AMP, ARMS, CTX = torch.float16, 5, 6
TRUE = torch.randn(CTX, ARMS)


def pull(ctx, arm):
    mean = (ctx @ TRUE).gather(1, arm[:, None]).squeeze(1)
    return mean + 3.0 * torch.randn(len(arm))


def mlp(out):
    return nn.Sequential(nn.Linear(CTX, 48), nn.Tanh(), nn.Linear(48, out))


policy, value = mlp(ARMS), mlp(1)
popt = torch.optim.Adam(policy.parameters(), lr=5e-3)
vopt = torch.optim.SGD(value.parameters(), lr=0.02)
scaler = torch.amp.GradScaler("cpu")


def losses(n=256):
    ctx = torch.randn(n, CTX)
    with torch.autocast("cpu", dtype=AMP):
        logits, base = policy(ctx), value(ctx)
    logits, base = logits.float(), base.float().squeeze(1)
    arm = torch.multinomial(logits.softmax(-1).detach(), 1).squeeze(1)
    reward = pull(ctx, arm)
    logp = logits.log_softmax(-1).gather(1, arm[:, None]).squeeze(1)
    return -(logp * (reward - base.detach())).mean(), (base - reward).square().mean(), reward.mean()


for step in range(1200):
    pl, vl, r = losses()
    popt.zero_grad()
    vopt.zero_grad()
    scaler.scale(pl).backward()
    scaler.scale(vl).backward()
    for opt, net in ((popt, policy), (vopt, value)):
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
    scaler.update()
    if step % 100 == 0:
        print(f"step {step} policy_loss {pl.item():.3f} value_loss {vl.item():.3f} reward {r.item():.3f}")

ctx = torch.randn(4000, CTX)
with torch.no_grad(), torch.autocast("cpu", dtype=AMP):
    arm = policy(ctx).argmax(-1)
gain = (ctx @ TRUE).gather(1, arm[:, None]).mean() / (ctx @ TRUE).max(1).values.mean()
print(f"share_of_best {gain.item():.4f}")
