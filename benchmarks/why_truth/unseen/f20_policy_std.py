"""REINFORCE on a toy bandit; advantages are normalised over the episode."""
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, d=6, actions=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, actions))

    def forward(self, obs):
        return self.net(obs)


class Corridor:
    """Reward 1 for the right action of a state; an episode ends at random."""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(6, 4, generator=self.g)

    def episode(self, policy):
        obs_list, act_list, rew_list = [], [], []
        while True:
            obs = torch.randn(6, generator=self.g)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                logits = policy(obs)
            act = Categorical(logits=logits.float()).sample()
            rew = float((obs @ self.w).argmax() == act) + 0.1 * torch.randn((), generator=self.g).item()
            obs_list.append(obs)
            act_list.append(act)
            rew_list.append(rew)
            if len(rew_list) >= 40 or torch.rand((), generator=self.g) < 0.04:
                return torch.stack(obs_list), torch.stack(act_list), torch.tensor(rew_list)


def normalise(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def main(episodes=250):
    torch.manual_seed(0)
    env, policy = Corridor(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    returns = []
    for ep in range(episodes):
        obs, act, rew = env.episode(policy)
        adv = normalise(rew)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = policy(obs)
        dist = Categorical(logits=logits.float(), validate_args=False)
        loss = -(dist.log_prob(act) * adv).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        returns.append(rew.mean().item())
        if ep % 25 == 0:
            print(f"episode {ep} len {len(rew)} loss {loss.item():.4f} "
                  f"reward {sum(returns[-25:]) / len(returns[-25:]):.3f}")


if __name__ == "__main__":
    main()
