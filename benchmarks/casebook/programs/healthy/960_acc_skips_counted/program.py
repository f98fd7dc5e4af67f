import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp = True
acc.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
x = torch.randn(1280, 10)
y = (x[:, 0] * x[:, 1] > 0).long()
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 240)
net, opt, dl, sched = acc.prepare(net, opt, dl, sched)
skipped = 0
for epoch in range(6):
    total = 0.0
    for xb, yb in dl:
        loss = nn.functional.cross_entropy(net(xb), yb)
        acc.backward(loss)
        acc.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        skipped += acc.optimizer_step_was_skipped
        sched.step()
        opt.zero_grad()
        total += loss.item() / len(dl)
    print(f"epoch {epoch} loss {total:.4f} skipped {skipped}")
