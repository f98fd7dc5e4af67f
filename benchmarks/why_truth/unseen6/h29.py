# small conv net + cyclic LR + SWA, fp16 train, validation of a bf16 copy of the model
import os, copy
import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(11)
amp_on = os.environ.get("FP32", "0") == "0"
S = 12


def images(n):
    """4 kinds of blobs/stripes with noise"""
    y = torch.randint(0, 4, (n,))
    ii, jj = torch.meshgrid(torch.arange(S).float(), torch.arange(S).float(), indexing="ij")
    ph = torch.rand(n, 1, 1) * 6.28
    pats = torch.stack([
        torch.sin(ii[None] * 1.3 + ph), torch.sin(jj[None] * 1.3 + ph),
        torch.sin((ii + jj)[None] * 0.9 + ph), torch.sin((ii - jj)[None] * 0.9 + ph)], 1)
    x = pats[torch.arange(n), y] + 1.4 * torch.randn(n, S, S)
    return x.unsqueeze(1), y


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Dropout2d(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))


xtr, ytr = images(1664)
xte, yte = images(1000)
m = net()
swa = AveragedModel(m)
opt = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
clr = torch.optim.lr_scheduler.CyclicLR(opt, base_lr=0.005, max_lr=0.08, step_size_up=13, step_size_down=13,
                                        cycle_momentum=False)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=100, enabled=amp_on)
CYCLE, EPOCHS = 26, 5
good = 0
for ep in range(EPOCHS):
    m.train()
    for ix in torch.randperm(len(xtr)).split(64):
        xb = xtr[ix]
        if torch.rand(()) < 0.5:
            xb = xb.roll(int(torch.randint(0, S, ())), dims=-1)
        with torch.autocast("cpu", dtype=torch.float16, enabled=amp_on):
            loss = F.cross_entropy(m(xb).float(), ytr[ix])
        opt.zero_grad()
        scaler.scale(loss).backward()
        prev = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() >= prev:
            clr.step()
            good += 1
            if good % CYCLE == 0 and good >= 2 * CYCLE:      # LR is at its lowest here
                swa.update_parameters(m)
    # quick look with a bf16 copy, the real model keeps its dtype
    quick = copy.deepcopy(m).eval()
    dt = torch.bfloat16 if amp_on else torch.float32
    with torch.no_grad():
        qa = (quick.to(dt)(xte[:400].to(dt)).argmax(1) == yte[:400]).float().mean()
    print(f"epoch {ep} loss {loss.item():.3f} lr {clr.get_last_lr()[0]:.4f} quick-acc {qa:.3f} averaged {int(swa.n_averaged)}")

update_bn([xtr[i:i + 200] for i in range(0, len(xtr), 200)], swa)
swa.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=amp_on):
    acc = (swa(xte).argmax(1) == yte).float().mean().item()
print("SWA test accuracy = %.4f" % acc)
