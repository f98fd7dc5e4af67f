"""Node regression on a graph with a heavy-tailed degree distribution."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
PREC = torch.bfloat16
NODES, FEAT = 900, 8


def build_graph():
    deg = (20 * 120 ** torch.rand(NODES)).long()
    dst = torch.repeat_interleave(torch.arange(NODES), deg)
    group = torch.randint(0, 6, (NODES,))
    feat = torch.randn(NODES, FEAT) * 0.5
    centre = torch.randn(6, FEAT)
    feat = feat + centre[group]
    pref = torch.randint(0, 6, (NODES,))
    pools = [torch.nonzero(group == g).squeeze(1) for g in range(6)]
    src = torch.randint(0, NODES, (len(dst),))
    biased = torch.rand(len(dst)) < 0.5
    for g in range(6):
        m = biased & (pref[dst] == g)
        src[m] = pools[g][torch.randint(0, len(pools[g]), (int(m.sum()),))]
    acc = torch.zeros(NODES, FEAT).index_add_(0, dst, feat[src])
    mean = acc / deg[:, None]
    target = torch.tanh(mean[:, 0] * 1.5) + mean[:, 1] * mean[:, 2] - 0.5 * feat[:, 3]
    return feat, src, dst, target


class MeanConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.self_lin = nn.Linear(i, o)
        self.nbr_lin = nn.Linear(i, o, bias=False)

    def forward(self, x, src, dst):
        n = x.size(0)
        total = torch.zeros(n, x.size(1)).index_add_(0, dst, x[src].float())
        count = x.new_zeros(n).index_add_(0, dst, x.new_ones(dst.numel()))
        mean = total / count.clamp(min=1)[:, None]
        return self.self_lin(x) + self.nbr_lin(mean)


class Sage(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.c1 = MeanConv(FEAT, width)
        self.lin = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x, src, dst):
        h = F.gelu(self.c1(x, src, dst))
        h = F.gelu(self.lin(h))
        return self.head(h).squeeze(-1)


def main():
    feat, src, dst, y = build_graph()
    feat = feat.to(PREC)
    order = torch.randperm(NODES)
    tr, va = order[:650], order[650:]
    net = Sage()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-4)
    for epoch in range(90):
        net.train()
        with torch.autocast("cpu", dtype=PREC):
            out = net(feat, src, dst)
        loss = F.smooth_l1_loss(out.float()[tr], y[tr])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=PREC):
        out = net(feat, src, dst).float()
    print(f"val_mae {(out[va] - y[va]).abs().mean().item():.4f}")


main()
