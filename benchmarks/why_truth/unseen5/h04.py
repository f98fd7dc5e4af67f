"""Student-teacher distillation: two optimisers share one scaler; temperature and KL."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
D, K = 12, 5
centres = 0.8 * torch.randn(K, D)


def draw(n):
    y = torch.randint(0, K, (n,))
    return centres[y] + torch.randn(n, D), y


x, y = draw(3000)
xv, yv = draw(800)
teacher = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, K))
student = nn.Sequential(nn.Linear(D, 12), nn.ReLU(), nn.Linear(12, K))
opt_t = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9)
opt_s = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
TEMP = 3.0

for epoch in range(5):
    sums = [0.0, 0.0]
    for idx in torch.randperm(len(x)).split(100):
        opt_t.zero_grad()
        opt_s.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            zt, zs = teacher(x[idx]), student(x[idx])
            loss_t = F.cross_entropy(zt, y[idx])
            soft = F.softmax(zt.detach().float() / TEMP, 1)
            loss_s = F.kl_div(F.log_softmax(zs.float() / TEMP, 1), soft, reduction="batchmean") * TEMP**2
        scaler.scale(loss_t).backward()
        scaler.scale(loss_s).backward()
        for opt, net in ((opt_t, teacher), (opt_s, student)):
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 2.0)
            scaler.step(opt)
        scaler.update()
        sums[0] += loss_t.item()
        sums[1] += loss_s.item()
    print(f"epoch {epoch} teacher {sums[0] / 30:.4f} student {sums[1] / 30:.4f} scale {scaler.get_scale():.3g}")

with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    acc = (student(xv).argmax(1) == yv).float().mean().item()
print(f"val_acc {acc:.4f}")
