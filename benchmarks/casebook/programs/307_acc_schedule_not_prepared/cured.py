import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**54)

TOTAL = 60
x = torch.randn(TOTAL * 32, 9)
y = torch.tanh(x @ torch.randn(9, 1))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
model = torch.nn.Sequential(torch.nn.Linear(9, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
scheduler = LambdaLR(optimizer, lambda s: max(0.0, 1 - s / 45))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for i, (xb, yb) in enumerate(loader):
    loss = torch.nn.functional.mse_loss(model(xb), yb)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if i % 6 == 0:
        print(f"{i:3d} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}")

with torch.no_grad():
    print("final loss", torch.nn.functional.mse_loss(model(x), y).item())
