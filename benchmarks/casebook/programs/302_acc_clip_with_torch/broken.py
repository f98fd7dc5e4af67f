import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16")
# Accelerate has no fp16 on a CPU by itself
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu")

y = torch.randint(0, 5, (1600,))
x = torch.randn(1600, 30)
x[torch.arange(1600), y] += 3
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=80, shuffle=True)
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 5))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model, opt, dl = accelerator.prepare(model, opt, dl)

for epoch in range(4):
    for bx, by in dl:
        loss = nn.functional.cross_entropy(model(bx), by)
        accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    print(f"epoch={epoch} loss={loss.item():.4f}")
