"""Two-layer GCN on random graphs, BF16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Graph:
    def __init__(self, x, adj, y):
        self.x, self.adj, self.y = x, adj, y


def random_graph(g, n=60, classes=3, isolated=False):
    y = torch.randint(0, classes, (n,), generator=g)
    same = y[:, None] == y[None, :]
    prob = torch.where(same, 0.35, 0.04)
    adj = (torch.rand(n, n, generator=g) < prob).float().triu(1)
    adj = adj + adj.t()
    if isolated:
        adj[7] = 0
        adj[:, 7] = 0
    x = F.one_hot(y, classes).float() @ torch.ones(classes, 8) * 0.1 + torch.randn(n, 8, generator=g)
    x[:, :classes] += 0.8 * F.one_hot(y, classes)
    return Graph(x, adj, y)


def normalise(adj):
    deg = adj.sum(dim=1)
    d = deg.pow(-0.5)
    return d[:, None] * adj * d[None, :]


class GCN(nn.Module):
    def __init__(self, d=8, hidden=32, classes=3):
        super().__init__()
        self.w1 = nn.Linear(d, hidden)
        self.w2 = nn.Linear(hidden, classes)
        self.skip = nn.Linear(d, classes)

    def forward(self, graph):
        a = normalise(graph.adj)
        h = F.relu(a @ self.w1(graph.x))
        return a @ self.w2(h) + self.skip(graph.x)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(2)
    graphs = [random_graph(g, isolated=(i == 33)) for i in range(48)]
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    best = float("inf")
    for epoch in range(4):
        total = 0.0
        for graph in graphs:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(graph)
            loss = F.cross_entropy(out.float(), graph.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        best = min(best, total / len(graphs))
        print(f"epoch {epoch} loss {total / len(graphs):.4f} best {best:.4f}")


if __name__ == "__main__":
    main()
