from accelerate import Accelerator
import torch
import torch.nn as nn

accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu")
torch.manual_seed(3)

X = torch.randn(960, 14)
Y = torch.stack([X[:, 0] * 0.5, X[:, 1] - X[:, 2]], 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=60)
model = nn.Sequential(nn.Linear(14, 50), nn.ReLU(), nn.Linear(50, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

model, loader = accelerator.prepare(model, loader)

model.train()
for epoch in range(5):
    running = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch} train loss {running / len(loader):.4f}")
