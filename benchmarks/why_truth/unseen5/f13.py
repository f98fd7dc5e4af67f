"""Node regression on a scale-free graph with mean aggregation, bf16 message passing."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
N, FEAT = 1500, 6


def build_graph():
    """Few hubs with thousands of in-edges, many small nodes."""
    x = torch.randn(N, FEAT) * 0.5 + 1.0
    deg = (4 * (torch.rand(N) + 1e-3).pow(-0.9)).long().clamp(2, 3000)
    dst = torch.repeat_interleave(torch.arange(N), deg)
    group = torch.randn(N)
    prob = torch.softmax(group[:, None] * torch.linspace(-1.5, 1.5, 5), 1)
    bucket = torch.multinomial(prob, int(deg.max()), replacement=True)
    slot = torch.cat([torch.arange(int(d)) for d in deg])
    pick = bucket[dst, slot]
    order = x[:, 0].argsort()
    src = order[pick * (N // 5) + torch.randint(0, N // 5, (len(dst),))]
    return x, torch.stack([src, dst])


def aggregate_mean(h, edge_index):
    src, dst = edge_index
    total = h.new_zeros(h.shape).index_add_(0, dst, h[src])
    count = h.new_zeros(len(h)).index_add_(0, dst, torch.ones_like(dst, dtype=h.dtype))
    return total / count.clamp(min=1)[:, None]


class MeanConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.self_lin = nn.Linear(cin, cout)
        self.nbr_lin = nn.Linear(cin, cout)

    def forward(self, h, edge_index):
        return self.self_lin(h) + self.nbr_lin(aggregate_mean(h, edge_index))


class GNN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.c1 = MeanConv(FEAT, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x, edge_index):
        return self.out(F.relu(self.c1(x, edge_index))).squeeze(-1)


def main():
    x, edge_index = build_graph()
    src, dst = edge_index
    deg = torch.bincount(dst, minlength=N).float()
    nbr = torch.zeros(N, FEAT).index_add_(0, dst, x[src]) / deg[:, None]
    y = 2.0 * (nbr[:, 0] - 1.0) + nbr[:, 1:].mean(1) + 0.3 * x[:, 1]
    y = (y - y.mean()) / y.std()
    weight = deg.log()
    val = torch.zeros(N, dtype=torch.bool)
    val[torch.randperm(N)[: N // 3]] = True

    model = GNN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    feats = x.to(torch.bfloat16)
    for epoch in range(120):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(feats, edge_index)
        err = (pred.float() - y).pow(2)
        loss = (weight * err)[~val].sum() / weight[~val].sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 40 == 39:
            print(f"epoch {epoch + 1} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        pred = model(feats, edge_index).float()
    score = (weight * (pred - y).pow(2))[val].sum() / weight[val].sum()
    print(f"val_wmse {score.item():.4f}")


if __name__ == "__main__":
    main()
