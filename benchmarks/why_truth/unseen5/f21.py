"""Node classification on a directed citation graph (papers cite older papers)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, N, NCLS, FEAT = 21, 800, 5, 32


def citation_graph(gen):
    y = torch.randint(NCLS, (N,), generator=gen)
    src, dst = [], []
    for p in range(10, N):
        for _ in range(4):
            cand = torch.randint(0, p, (8,), generator=gen)
            same = cand[y[cand] == y[p]]
            pick = same[0] if len(same) and torch.rand(1, generator=gen) < 0.8 else cand[0]
            src.append(p)
            dst.append(int(pick))
    proto = torch.randn(NCLS, FEAT, generator=gen)
    x = proto[y] * 0.35 + torch.randn(N, FEAT, generator=gen)
    return x, torch.tensor([src, dst]), y


def gcn_norm(edge_index, num_nodes):
    src, dst = edge_index
    deg = torch.bincount(dst, minlength=num_nodes).float()
    inv_sqrt = deg.pow(-0.5)
    return inv_sqrt[src] * inv_sqrt[dst]


class GraphConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout, bias=False)
        self.root = nn.Linear(cin, cout)

    def forward(self, x, edge_index, norm):
        src, dst = edge_index
        h = self.lin(x)
        msg = h[src].float() * norm[:, None]
        agg = torch.zeros(x.size(0), h.size(1)).index_add_(0, dst, msg)
        return agg + self.root(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = GraphConv(FEAT, 48)
        self.c2 = GraphConv(48, NCLS)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, ei, norm):
        h = self.drop(F.relu(self.c1(x, ei, norm)))
        return self.c2(h, ei, norm)


def main():
    gen = torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    x, ei, y = citation_graph(gen)
    perm = torch.randperm(N, generator=gen)
    tr, va = perm[:400], perm[400:]
    norm = gcn_norm(ei, N)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=5e-3)
    for epoch in range(60):
        net.train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x, ei, norm)
        loss = F.cross_entropy(out[tr].float(), y[tr])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        acc = (net(x, ei, norm)[va].argmax(1) == y[va]).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
