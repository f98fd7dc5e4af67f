"""Multi-task regression/classification: two optimizers share one gradient scaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(10)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.cls = nn.Linear(64, 4)
        self.reg = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.reg(h).squeeze(-1)


def make(n, w1, w2):
    x = torch.randn(n, 20)
    return x, (x @ w1).argmax(1), torch.tanh(x @ w2) * 3


def main():
    w1, w2 = torch.randn(20, 4), torch.randn(20) * 0.4
    x, yc, yr = make(4000, w1, w2)
    vx, vc, vr = make(1000, w1, w2)
    net = MultiTask()
    opt_trunk = torch.optim.AdamW(net.trunk.parameters(), lr=3e-3)
    opt_heads = torch.optim.SGD([*net.cls.parameters(), *net.reg.parameters()], lr=0.05,
                                momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=100)
    for step in range(300):
        i = torch.randint(len(x), (128,))
        opt_trunk.zero_grad()
        opt_heads.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            c, r = net(x[i])
            lc = F.cross_entropy(c, yc[i])
            lr_ = F.smooth_l1_loss(r.float(), yr[i])
        scaler.scale(lc).backward(retain_graph=True)
        scaler.scale(0.5 * lr_).backward()
        scaler.unscale_(opt_trunk)
        nn.utils.clip_grad_norm_(net.trunk.parameters(), 2.0)
        scaler.step(opt_trunk)
        scaler.step(opt_heads)
        scaler.update()
        if step % 100 == 0:
            print(f"step {step} cls {lc.item():.3f} reg {lr_.item():.3f} "
                  f"scale {scaler.get_scale():g}")
    with torch.no_grad():
        c, r = net(vx)
        print(f"reg mae {(r - vr).abs().mean().item():.4f}")
        print(f"val_acc {(c.argmax(1) == vc).float().mean().item():.4f}")


main()
