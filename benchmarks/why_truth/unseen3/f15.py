"""Neural HMM for activity segments: emission net + learned transitions, trained by the forward algorithm."""
import numpy as np
import torch
import torch.nn as nn

S, T, D = 4, 24, 6


def sequences(n, seed):
    rng = np.random.default_rng(seed)
    A = np.full((S, S), 0.05) + np.eye(S) * 0.8
    means = np.random.default_rng(5).standard_normal((S, D)) * 1.5
    z = np.zeros((n, T), dtype=int)
    z[:, 0] = rng.integers(0, S, n)
    for t in range(1, T):
        for i in range(n):
            z[i, t] = rng.choice(S, p=A[z[i, t - 1]])
    x = means[z] + rng.standard_normal((n, T, D))
    sym = np.digitize(x[..., 0] + 0.5 * x[..., 1], np.linspace(-3, 3, 11))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(sym)


class NeuralHMM(nn.Module):
    """p(symbol_t | state, context features of the previous frame)"""

    def __init__(self, n_sym=12, width=32):
        super().__init__()
        self.prior = nn.Parameter(torch.zeros(S))
        self.trans = nn.Parameter(torch.eye(S))
        self.emit = nn.Sequential(nn.Linear(D, width), nn.Tanh(), nn.Linear(width, S * n_sym))
        self.n_sym = n_sym

    def emission_probs(self, ctx, sym):
        logits = self.emit(ctx).view(*ctx.shape[:2], S, self.n_sym)
        p = torch.softmax(logits, dim=-1)
        return p.gather(-1, sym[..., None, None].expand(-1, -1, S, 1)).squeeze(-1)

    def forward(self, x, sym):
        ctx = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        emit = self.emission_probs(ctx, sym)
        A = torch.softmax(self.trans, dim=-1)
        alpha = torch.softmax(self.prior, dim=-1) * emit[:, 0]
        for t in range(1, x.size(1)):
            alpha = (alpha @ A) * emit[:, t]
        return torch.log(alpha.sum(dim=-1))


def evaluate(model, x, sym):
    with torch.no_grad():
        return (-model(x, sym).float().mean() / T).item()


def main():
    torch.manual_seed(6)
    x, sym = sequences(300, 0)
    xt, symt = sequences(100, 1)
    model = NeuralHMM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    gen = torch.Generator().manual_seed(0)
    for step in range(120):
        idx = torch.randint(0, len(x), (12,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            nll = -model(x[idx], sym[idx]).mean()
        opt.zero_grad(set_to_none=True)
        scaler.scale(nll / T).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"iter {step} nll/frame {nll.item() / T:.4f}")
    print(f"final test nll per frame {evaluate(model, xt, symt):.4f}")


if __name__ == "__main__":
    main()
