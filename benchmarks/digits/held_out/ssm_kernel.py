"""Diagonal state-space layer evaluated as a long convolution: kernel[k] = C * decay^k * B (S4D, real case)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PRECISION = "bfloat16"


class DiagonalSSM(nn.Module):
    def __init__(self, dim, state=4):
        super().__init__()
        self.log_dt = nn.Parameter(torch.empty(dim, state).uniform_(-7.0, -4.5))
        self.b = nn.Parameter(torch.randn(dim, state) * 0.5)
        self.c = nn.Parameter(torch.randn(dim, state) * 0.5)

    def kernel(self, length, dtype):
        decay = torch.exp(-torch.exp(self.log_dt)).to(dtype)  # guilty
        steps = torch.arange(length, dtype=torch.float32)
        powers = decay.unsqueeze(-1) ** steps
        return (self.c.unsqueeze(-1) * self.b.unsqueeze(-1) * powers).sum(dim=1)

    def forward(self, u):
        length = u.shape[1]
        k = self.kernel(length, u.dtype)
        # only the last output is needed: y_T = sum_k kernel[k] u[T-k]
        return (u.transpose(1, 2) * k.flip(-1)).sum(dim=-1) / length ** 0.5


class LongClassifier(nn.Module):
    def __init__(self, n_in=3, dim=24, classes=4):
        super().__init__()
        self.enc = nn.Linear(n_in, dim)
        self.ssm = DiagonalSSM(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        u = F.gelu(self.enc(x))
        y = self.ssm(u)
        return self.head(F.silu(self.norm(y)))


def loss_fn(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


def make():
    torch.manual_seed(67)
    model = LongClassifier()
    x = torch.randn(8, 512, 3)
    x = x + 0.5 * torch.randn(8, 1, 3)
    y = torch.randint(0, 4, (8,))
    return model, loss_fn, (x, y)
