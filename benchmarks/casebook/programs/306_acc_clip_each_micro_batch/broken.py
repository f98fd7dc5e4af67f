import torch
from torch import nn
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=4)
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu")

data = torch.randn(640, 8)
labels = (data.prod(1) > 0).long()
train_dl = torch.utils.data.DataLoader(list(zip(data, labels)), batch_size=16)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, train_dl = accelerator.prepare(model, optimizer, train_dl)

for epoch in range(8):
    total = 0.0
    for batch, target in train_dl:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item() / len(train_dl)
    accelerator.print(f"epoch {epoch} loss {total:.4f}")
