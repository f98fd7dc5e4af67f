import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**48)

x = torch.randn(1280, 12)
y = (x[:, :3].sum(1) > 0).long()
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
ema = [p.detach().clone() for p in net.parameters()]
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=200)
net, optimizer, dl, scheduler = accelerator.prepare(net, optimizer, dl, scheduler)
updates = 0
for epoch in range(4):
    total = 0.0
    for xb, yb in dl:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(xb), yb)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.optimizer_step_was_skipped:
            updates += 1
            for e, p in zip(ema, net.parameters()):
                e.lerp_(p.detach(), 0.02)
        total += loss.item() / len(dl)
    print(f"epoch {epoch} loss {total:.4f}")
real = int(next(iter(optimizer.optimizer.state.values()))["step"])
print(f"{updates - real} updates of the average were counted without a step")
